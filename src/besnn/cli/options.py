"""Arguments and options that commands share."""

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal

import typer


class Engine(StrEnum):
    """Where a command runs: on this machine, or on a Ray cluster."""

    LOCAL = "local"
    RAY = "ray"


def option(metavar: str, help: str, *names: str, **more: Any) -> Any:
    """Return an option that takes a value; unless given, its name is that of the parameter."""
    return typer.Option(*names, metavar=metavar, help=help, **more)


def complete_data(incomplete: str) -> list[str]:
    """Return built-in data sets by the start of their names."""
    from besnn.data import available

    return [info.name for info in available() if info.name.startswith(incomplete)]


def complete_method(incomplete: str) -> list[str]:
    """Return methods by the start of their names."""
    from besnn.recipe import METHODS

    return [name for name in METHODS if name.startswith(incomplete)]


def complete_device(incomplete: str) -> list[str]:
    """Return devices by the start of their names."""
    return [name for name in ("auto", "cpu", "cuda", "mps") if name.startswith(incomplete)]


def check_engine(engine: Engine, library: Literal["data", "serve"], device: str, ray_options: Mapping[str, object]) -> None:
    """Refuse options of the other engine, and Ray without its library; the last of Ray's options replaces --device there.

    >>> check_engine(Engine.LOCAL, "data", "cpu", {"--address": None, "--gpus-per-worker": None})
    """
    from besnn.errors import InputError
    from besnn.ray import require_ray

    if engine is Engine.RAY:
        require_ray(library)
        if device != "auto":
            raise InputError(f"--device {device} is for this machine: on Ray, use {list(ray_options)[-1]}")
    elif given := [name for name, value in ray_options.items() if value is not None]:
        raise InputError(f"{given[0]} is for Ray: add --engine ray, or leave it out")


DATA_HELP = "a built-in name (besnn data list), a folder of images, an .npz, a .csv, a .tsv (also as .gz) or a .parquet"

Model = Annotated[Path, typer.Argument(metavar="MODEL", help="A model file, as besnn train writes it.")]
Data = Annotated[str, typer.Argument(metavar="DATA", help=f"{DATA_HELP.capitalize()}.", autocompletion=complete_data)]
Alpha = Annotated[float, option("RATE", "The share of known inputs that may be flagged.")]
Delta = Annotated[
    float | None, option("RATE", "Keep alpha with probability 1 - delta over the draw of held-out data. (default: on average)")
]
NewModel = Annotated[Path, option("FILE", "The model file to write.", "--output", "-o")]
Where = Annotated[Engine, typer.Option(help="Where to run: on this machine, or on a Ray cluster.")]
Label = Annotated[str | None, option("COLUMN", "The class column of a table. (default: the one of training, else `label`)")]
DataDir = Annotated[Path | None, option("FOLDER", "The folder of built-in sets. (default: $BESNN_DATA, else the cache)")]
Json = Annotated[bool, typer.Option("--json", help="Print the outcome as JSON, and nothing else, on standard output.")]
Device = Annotated[
    str,
    option("auto|cpu|cuda[:N]|mps", "Where to compute; auto uses a GPU if there is one.", autocompletion=complete_device),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print errors only.")]
Address = Annotated[str | None, option("HOST:PORT", "The Ray cluster. (default: $RAY_ADDRESS, else one on this machine)")]
