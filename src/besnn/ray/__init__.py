"""Beyond one machine: batch scoring on Ray Data and the service on Ray Serve."""

from importlib import import_module
from typing import Literal

from besnn.errors import InputError, one_line


def require_ray(library: Literal["data", "serve"]) -> None:
    """Raise an InputError that names the extra unless a library of Ray can be imported."""
    try:
        import_module(f"ray.{library}")
    except ImportError as error:
        missing = f"--engine ray needs Ray, which is not installed ({one_line(error)})"
        raise InputError(f"{missing}: pip install 'besnn[ray]'") from None
