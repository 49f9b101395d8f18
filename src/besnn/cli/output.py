"""What commands print: outcomes on standard output, progress on standard error."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer

from besnn.errors import printable

if TYPE_CHECKING:
    from besnn.training.progress import Reporter


def announce(facts: Mapping[str, object], sentences: Iterable[str], *, as_json: bool, quiet: bool) -> None:
    """Prints a command's outcome: as JSON, or in words, or not at all."""
    if as_json:
        typer.echo(to_json(facts))
    elif not quiet:
        for sentence in sentences:
            typer.echo(printable(sentence))


def to_json(value: object) -> str:
    """JSON as people and programs can read it.

    >>> print(to_json({"café": [1.5, None]}))
    {
      "café": [
        1.5,
        null
      ]
    }
    """
    return json.dumps(value, indent=2, ensure_ascii=False)


def note(text: str, *, quiet: bool) -> None:
    """Prints a remark on the way, on standard error."""
    if not quiet:
        typer.echo(text, err=True)


def training_progress(quiet: bool) -> "Reporter":
    """A bar and a line an epoch on standard error; nothing when quiet."""
    from rich.console import Console

    from besnn.training.progress import ProgressBar, Reporter

    return Reporter() if quiet else ProgressBar(Console(stderr=True))


@contextmanager
def counting_progress(quiet: bool) -> Iterator[Callable[[int], None]]:
    """On a terminal, a count of inputs and their speed; yields what is to be told of further ones."""
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = SpinnerColumn(), TextColumn("{task.completed:,} inputs"), TimeElapsedColumn()
    with Progress(*columns, console=console, transient=True, disable=quiet or not console.is_terminal) as bar:
        task = bar.add_task("", total=None)
        yield lambda more: bar.advance(task, more)
