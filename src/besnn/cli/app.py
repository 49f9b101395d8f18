"""The program `besnn`: its commands, how it starts and how it ends."""

import logging
import os
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from besnn.cli import data
from besnn.cli.calibrate import calibrate
from besnn.cli.evaluate import evaluate
from besnn.cli.export import export
from besnn.cli.inspect import inspect
from besnn.cli.monitor import monitor
from besnn.cli.options import Quiet
from besnn.cli.output import exit_code_of
from besnn.cli.recipes import recipes
from besnn.cli.score import score
from besnn.cli.serve import serve
from besnn.cli.train import train
from besnn.cli.wrap import wrap
from besnn.version import __version__


def demo(
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FOLDER", help="The folder to write to.")] = Path("demo"),
    quiet: Quiet = False,
) -> None:
    """Train, calibrate, evaluate and draw on two small data sets that need no download, in a minute or two."""
    from besnn.demo import run_demo

    run_demo(output, say=(lambda text: None) if quiet else typer.echo)


app = typer.Typer(
    name="besnn",
    help='Classifiers that say "I don\'t know this": train, calibrate, evaluate, score, serve.',
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
)
for command in (demo, train, wrap, calibrate, evaluate, score, serve, monitor, export, inspect, recipes):
    app.command()(command)
app.add_typer(data.app)


@app.callback(invoke_without_command=True)
def _program(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.", is_eager=True)] = False,
) -> None:
    if version:
        typer.echo(f"besnn {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; the arguments are the process's own unless given."""
    words = _json_flags(list(sys.argv[1:] if arguments is None else arguments))
    return exit_code_of(lambda: app(words, prog_name="besnn", standalone_mode=False))


def _json_flags(words: list[str]) -> list[str]:
    """Replace `--json -` by `--json`, except for `evaluate`, where the option takes a file or `-`.

    >>> _json_flags(["inspect", "model.safetensors", "--json", "-"])
    ['inspect', 'model.safetensors', '--json']
    """
    if words[:1] == ["evaluate"]:
        return words
    pairs = zip(["", *words], words, strict=False)
    return [word.replace("--json=-", "--json") for before, word in pairs if (before, word) != ("--json", "-")]


def main() -> None:
    """Run the command that the process was started with, and exit."""
    if not os.environ.get("BESNN_DEBUG"):  # hide what libraries tell developers
        warnings.simplefilter("ignore")
        logging.disable(logging.INFO)
    sys.exit(run())
