"""The program `besnn`: its commands, and how it starts and ends."""

import logging
import os
import sys
import warnings
from collections.abc import Sequence
from typing import Annotated

import typer

from besnn.cli import calibrate, data, demo, evaluate, export, inspect, monitor, recipes, score, serve, train
from besnn.cli.errors import exit_code_of
from besnn.version import __version__

app = typer.Typer(
    name="besnn",
    help='Classifiers that say "I don\'t know this": train, calibrate, evaluate, score.',
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
)
for command in (
    demo.demo,
    train.train,
    calibrate.calibrate,
    evaluate.evaluate,
    score.score,
    serve.serve,
    monitor.monitor,
    export.export,
    inspect.inspect,
    recipes.recipes,
):
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
    """Let `--json -` mean `--json` for the commands where that is a flag: all but `evaluate`, which can also write a file.

    >>> _json_flags(["inspect", "model.safetensors", "--json", "-"])
    ['inspect', 'model.safetensors', '--json']
    """
    if words[:1] == ["evaluate"]:
        return words
    pairs = zip(["", *words], words, strict=False)
    return [word.replace("--json=-", "--json") for before, word in pairs if (before, word) != ("--json", "-")]


def main() -> None:
    """The entry point."""
    if not os.environ.get("BESNN_DEBUG"):  # what libraries tell developers is noise to a user
        warnings.simplefilter("ignore")
        logging.disable(logging.INFO)
    sys.exit(run())
