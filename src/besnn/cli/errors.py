"""How a command fails: one line on standard error and an exit code, never a traceback."""

import os
import sys
import traceback
from collections.abc import Callable

from besnn.errors import BesnnError, InputError, NotReadyError, one_line

FAILED, WRONG_USE, INTERRUPTED = 1, 2, 130


def exit_code_of(command: Callable[[], int | None]) -> int:
    """Runs a command and returns its exit code; whatever it raises becomes one line on standard error.

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
    """The exit code for an error, and its message on one line.

    >>> explain(InputError("alpha=2 is not a rate"))
    (2, 'alpha=2 is not a rate')
    """
    if isinstance(error, BesnnError):
        return (WRONG_USE if isinstance(error, InputError | NotReadyError) else FAILED), one_line(error)
    if hasattr(error, "format_message"):  # typer's own; it brings click along in some versions, and imports it in others
        return WRONG_USE, f"{one_line(error.format_message())} ({_help_of(error)} tells how)"
    if type(error).__name__ == "Abort":  # how older versions of typer pass Ctrl-C on
        return INTERRUPTED, ""
    if type(error).__name__ == "OutOfMemoryError":  # torch's, which need not be imported yet
        return FAILED, "the GPU is out of memory: use --device cpu, or stop what else runs on it"
    if isinstance(error, OSError):
        return FAILED, one_line(error)
    name = f"{type(error).__name__}: {one_line(str(error))}".rstrip(": ")
    return FAILED, f"unexpected {name}; this is a bug: please report it with the traceback that BESNN_DEBUG=1 shows"


def _help_of(error: Exception) -> str:
    context = getattr(error, "ctx", None)
    return f"{context.command_path if context is not None else 'besnn'} --help"
