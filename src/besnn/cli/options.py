"""Arguments and options that commands share."""

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class Engine(StrEnum):
    """What does the work."""

    LOCAL = "local"
    RAY = "ray"


def complete_data(incomplete: str) -> list[str]:
    """Built-in data sets whose names begin so."""
    from besnn.data import available

    return [info.name for info in available() if info.name.startswith(incomplete)]


def complete_device(incomplete: str) -> list[str]:
    """Return the devices whose names start like this."""
    return [name for name in ("auto", "cpu", "cuda", "mps") if name.startswith(incomplete)]


def refuse_ray_options(given: Mapping[str, object]) -> None:
    """Refuses options, by name, that only the Ray engine knows.

    >>> refuse_ray_options({"--address": None})
    """
    from besnn.errors import InputError

    for option, value in given.items():
        if value is not None:
            raise InputError(f"{option} is for Ray: add --engine ray, or leave it out")


DATA_HELP = "a built-in name (besnn data list), a folder of images, an .npz, a .csv or a .parquet"

Model = Annotated[Path, typer.Argument(metavar="MODEL", help="A model file, as besnn train writes it.", show_default=False)]
Data = Annotated[
    str, typer.Argument(metavar="DATA", help=f"{DATA_HELP.capitalize()}.", autocompletion=complete_data, show_default=False)
]
Label = Annotated[
    str | None,
    typer.Option("--label", metavar="COLUMN", help="The class column of a table. (default: the recipe's, mostly `label`)"),
]
DataDir = Annotated[
    Path | None,
    typer.Option("--data-dir", metavar="FOLDER", help="Where built-in sets lie. (default: $BESNN_DATA, else the cache)"),
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
    str | None,
    typer.Option(metavar="HOST:PORT", help="The Ray cluster. (default: $RAY_ADDRESS, else one of this machine alone)"),
]
