"""The HTTP service around a detector: `create_app` makes it, `besnn.serve.server` runs it."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from besnn.serve.app import create_app
    from besnn.serve.settings import Settings

__all__ = ["Settings", "create_app"]

_HOMES = {"Settings": "besnn.serve.settings", "create_app": "besnn.serve.app"}


def __getattr__(name: str) -> object:
    """Import a public name when it is first used: `besnn monitor` and processes that decode images need no web framework."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_HOMES[name]), name)
