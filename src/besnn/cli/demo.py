"""`besnn demo`: the whole of it, on data that needs no download."""

from pathlib import Path
from typing import Annotated

import typer

from besnn.cli.options import Quiet


def demo(
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FOLDER", help="Where to write.")] = Path("demo"),
    quiet: Quiet = False,
) -> None:
    """Train, calibrate, evaluate and draw on two small data sets that need no download, in a minute or two."""
    from besnn.demo import run_demo

    run_demo(output, say=(lambda text: None) if quiet else typer.echo)
