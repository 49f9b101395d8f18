"""Arguments and options that commands share."""

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class Engine(StrEnum):
    """Where a command runs: on this machine, or on a Ray cluster."""

    LOCAL = "local"
    RAY = "ray"


def complete_data(incomplete: str) -> list[str]:
    """Return the built-in data sets whose names start like this."""
    from besnn.data import available

    return [info.name for info in available() if info.name.startswith(incomplete)]


def complete_method(incomplete: str) -> list[str]:
    """Return the methods whose names start like this."""
    from besnn.recipe import METHODS

    return [name for name in METHODS if name.startswith(incomplete)]


def complete_device(incomplete: str) -> list[str]:
    """Return the devices whose names start like this."""
    return [name for name in ("auto", "cpu", "cuda", "mps") if name.startswith(incomplete)]


def refuse_ray_options(given: Mapping[str, object]) -> None:
    """Refuse options, by name, that need the Ray engine.

    >>> refuse_ray_options({"--address": None})
    """
    from besnn.errors import InputError

    for option, value in given.items():
        if value is not None:
            raise InputError(f"{option} is for Ray: add --engine ray, or leave it out")


def refuse_local_device(device: str, instead: str) -> None:
    """Refuse a device on Ray, where another option says what workers compute on.

    >>> refuse_local_device("auto", instead="--gpus-per-worker")
    """
    from besnn.errors import InputError

    if device != "auto":
        raise InputError(f"--device {device} is for this machine: on Ray, use {instead}")


DATA_HELP = "a built-in name (besnn data list), a folder of images, an .npz, a .csv or a .parquet"

Model = Annotated[Path, typer.Argument(metavar="MODEL", help="A model file, as besnn train writes it.")]
Data = Annotated[str, typer.Argument(metavar="DATA", help=f"{DATA_HELP.capitalize()}.", autocompletion=complete_data)]
Label = Annotated[
    str | None,
    typer.Option("--label", metavar="COLUMN", help="The class column of a table. (default: the recipe's, usually `label`)"),
]
DataDir = Annotated[
    Path | None,
    typer.Option("--data-dir", metavar="FOLDER", help="The folder of built-in sets. (default: $BESNN_DATA, else the cache)"),
]
Json = Annotated[bool, typer.Option("--json", help="Print the outcome as JSON, and nothing else, on standard output.")]
Device = Annotated[
    str,
    typer.Option(
        "--device",
        metavar="auto|cpu|cuda[:N]|mps",
        help="Where to compute; auto takes a GPU if there is one.",
        autocompletion=complete_device,
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print errors only.")]
Address = Annotated[
    str | None, typer.Option(metavar="HOST:PORT", help="The Ray cluster. (default: $RAY_ADDRESS, else one on this machine)")
]
