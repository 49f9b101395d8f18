"""The program `besnn`: its commands, how it starts and how it ends."""

import logging
import os
import sys
import threading
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import typer

from besnn.cli import data
from besnn.cli.calibrate import calibrate
from besnn.cli.evaluate import evaluate
from besnn.cli.export import export
from besnn.cli.help import Command
from besnn.cli.inspect import inspect
from besnn.cli.monitor import monitor
from besnn.cli.options import Quiet, option
from besnn.cli.output import exit_code_of
from besnn.cli.recipes import recipes
from besnn.cli.score import score
from besnn.cli.serve import serve
from besnn.cli.sign import sign
from besnn.cli.train import train
from besnn.cli.triage import triage
from besnn.cli.wrap import wrap
from besnn.version import __version__


def demo(
    output: Annotated[Path, option("FOLDER", "The folder to write to.", "--output", "-o")] = Path("demo"),
    quiet: Quiet = False,
) -> None:
    """Show what besnn does on two small data sets.

    It takes a minute or two, and needs no download. The folder then holds two models, a picture and a report.
    """
    from besnn.demo import run_demo

    run_demo(output, say=(lambda text: None) if quiet else typer.echo)


app = typer.Typer(
    name="besnn",
    help='Classifiers that say "I don\'t know this": train, calibrate, evaluate, score, serve.',
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
EXAMPLES: dict[Callable[..., None], str] = {
    demo: """
    besnn demo
    besnn demo -o first-look
    """,
    train: """
    besnn train photos/ -o photos.safetensors
    besnn train wine.csv --label kind --alpha 0.01 -o wine.safetensors
    """,
    wrap: """
    besnn wrap network.pt2 photos/ -o photos.safetensors
    besnn wrap embeddings.parquet --label kind --alpha 0.01 -o detector.safetensors
    """,
    calibrate: """
    besnn calibrate photos.safetensors recent-photos/
    besnn calibrate wine.safetensors held-out.csv --alpha 0.1 -o careful.safetensors
    """,
    evaluate: """
    besnn evaluate photos.safetensors --in test-photos/ --out strange-photos/
    besnn evaluate wine.safetensors --in test.csv --out oil.csv vinegar.csv --report report.html
    """,
    score: """
    besnn score photos.safetensors inbox/ -o scores.csv
    besnn score wine.safetensors new.parquet -o scores.parquet --quiet
    """,
    triage: """
    besnn triage photos.safetensors inbox/ -o triage/
    besnn triage photos.safetensors inbox/ -o triage/ --apply
    """,
    serve: """
    besnn serve photos.safetensors
    besnn serve photos.safetensors --host 0.0.0.0 --port 80 --token-file token.txt
    """,
    monitor: """
    besnn monitor scores.parquet --model photos.safetensors
    besnn monitor today.csv --model photos.safetensors --state drift.sqlite
    """,
    export: """
    besnn export photos.safetensors
    besnn export photos.safetensors --format torch -o photos.pt2
    """,
    inspect: """
    besnn inspect photos.safetensors
    besnn inspect photos.safetensors --json
    """,
    sign: """
    besnn sign photos.safetensors --key model.key
    BESNN_MODEL_KEY=model.key besnn serve photos.safetensors
    """,
    recipes: """
    besnn recipes
    besnn recipes images > mine.yaml
    """,
}
for command, examples in EXAMPLES.items():
    app.command(cls=Command, epilog=examples)(command)
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


def _thread_failed(failed: threading.ExceptHookArgs) -> None:
    """Say nothing about a full disk in TensorBoard's thread: the same error ends the command, in one line."""
    if not issubclass(failed.exc_type, OSError):
        threading.__excepthook__(failed)


def main() -> None:
    """Run the command that the process was started with, and exit."""
    if not os.environ.get("BESNN_DEBUG"):  # hide what libraries tell developers
        warnings.simplefilter("ignore")
        logging.disable(logging.INFO)
        logging.getLogger("PIL").setLevel(logging.CRITICAL)  # besnn's own error says what is wrong with a file
        threading.excepthook = _thread_failed
    sys.exit(run())
