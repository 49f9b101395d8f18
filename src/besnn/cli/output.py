"""What commands print, and the codes they exit with.

The outcome goes to standard output; progress and errors go to standard error. An error is one line, never a traceback.
"""

import json
import os
import re
import shlex
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer

from besnn.errors import BesnnError, InputError, NotReadyError, one_line, printable

if TYPE_CHECKING:
    from besnn.training.progress import Reporter

FAILED, WRONG_USE, INTERRUPTED = 1, 2, 130
_JARGON = {"a valid integer.*": "a whole number", "a valid number.*": "a number", "(greater|less) than": r"a number \1 than"}


def announce(facts: Mapping[str, object], sentences: Iterable[str], *, as_json: bool, quiet: bool) -> None:
    """Print the outcome of a command: as JSON, in words, or not at all."""
    if as_json:
        typer.echo(to_json(facts))
    elif not quiet:
        for sentence in sentences:
            typer.echo(printable(sentence))


def to_json(value: object) -> str:
    """Return JSON, indented and with characters as they are."""
    return json.dumps(value, indent=2, ensure_ascii=False)


def count(number: int, noun: str) -> str:
    """Return a number of things in words.

    >>> count(1, "member"), count(1200, "input")
    ('1 member', '1,200 inputs')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def note(text: str, *, quiet: bool) -> None:
    """Print a remark on standard error, unless quiet."""
    if not quiet:
        typer.echo(text, err=True)


def command_line(*words: object) -> str:
    """Return a command to copy into a shell, with quotation marks where they are needed.

    >>> command_line("besnn", "inspect", "my model.safetensors")
    "besnn inspect 'my model.safetensors'"
    """
    return shlex.join(map(str, words))


def training_progress(quiet: bool, verbose: bool) -> "Reporter":
    """Return a reporter that prints a bar and one line per epoch on standard error; a silent one if quiet."""
    from rich.console import Console

    from besnn.training.progress import ProgressBar, Reporter

    return Reporter() if quiet else ProgressBar(Console(stderr=True), verbose)


@contextmanager
def counting_progress(quiet: bool, total: int | None = None) -> Iterator[Callable[[int], None]]:
    """Show a running count of inputs on a terminal, with their total and the time left if the total is known.

    Yields a function to call with the number of further inputs.
    """
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        yield lambda more: None
        return
    known = BarColumn(), TextColumn("{task.completed:,} of {task.total:,} inputs"), TimeRemainingColumn()
    unknown = SpinnerColumn(), TextColumn("{task.completed:,} inputs"), TimeElapsedColumn()
    columns = unknown if total is None else known
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=total)
        yield lambda more: bar.advance(task, more)


def exit_code_of(command: Callable[[], int | None]) -> int:
    """Run a command and return its exit code; an error becomes one line on standard error.

    >>> exit_code_of(lambda: None)
    0
    """
    try:
        return command() or 0
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as error:
        code, message = explain(error)
        if os.environ.get("BESNN_DEBUG"):
            traceback.print_exc()
        if message:
            print(f"besnn: {message}", file=sys.stderr)
        return code


def explain(error: Exception) -> tuple[int, str]:
    """Return the exit code for an error, and its message on one line.

    >>> explain(InputError("alpha=2 is not a rate"))
    (2, 'alpha=2 is not a rate')
    """
    if isinstance(error, BesnnError):
        return (WRONG_USE if isinstance(error, InputError | NotReadyError) else FAILED), one_line(error)
    if hasattr(error, "format_message"):  # wrong use, found by typer: some versions vendor click, so there is no class to name
        context = getattr(error, "ctx", None)
        message = one_line(error.format_message())
        for jargon, words in _JARGON.items():
            message = re.sub(f"Input should be {jargon}", f"give {words}", message)
        return WRONG_USE, f"{message} (see {context.command_path if context else 'besnn'} --help)"
    if type(error).__name__ == "Abort":  # Ctrl-C in older versions of typer
        return INTERRUPTED, ""
    if type(error).__name__ == "OutOfMemoryError":  # torch's, which need not be imported yet
        return FAILED, "the GPU is out of memory: use --device cpu, or stop other programs that use it"
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        return FAILED, one_line(f"{where}{error.strerror or one_line(error)}")
    name = f"{type(error).__name__}: {one_line(str(error))}".rstrip(": ")
    return FAILED, f"unexpected {name}; this is a bug: please report it with the traceback that BESNN_DEBUG=1 shows"
