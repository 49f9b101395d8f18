"""The errors that besnn raises on purpose: one line each, which names the value and says what to do."""

import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class BesnnError(Exception):
    """Base class of all errors raised on purpose; the message is a single line that can be shown to a user."""


class InputError(BesnnError, ValueError):
    """An argument is wrong: its shape, dtype, range or content."""


class DataError(BesnnError, OSError):
    """A file or data set is missing, unreadable, truncated or not what it claims to be."""


class NotReadyError(BesnnError, RuntimeError):
    """A step of the life cycle (train, calibrate, score) was used before the step that it needs."""


def printable(text: str) -> str:
    r"""Escape every character that cannot be printed, so that a name read from a file cannot control a terminal.

    Spaces of all kinds stay, such as the one that does not break in "5 %".

    >>> print(printable("café \x1b[2J"))
    café \x1b[2J
    """

    def escaped(each: str) -> str:
        return each if each.isprintable() or unicodedata.category(each) == "Zs" else repr(each)[1:-1]

    return text if text.isprintable() else "".join(map(escaped, text))


def one_line(message: Exception | str) -> str:
    r"""Return another library's error message (or any text) as one printable line; an empty error gives its class name.

    >>> one_line(ValueError("bad header:\n  too short"))
    'bad header: too short'
    """
    line = printable(" ".join(str(message).split()))
    return line or (type(message).__name__ if isinstance(message, Exception) else "")


@contextmanager
def reading(name: str | Path) -> Iterator[None]:
    """Turn whatever goes wrong while a file or folder is read into a DataError; readers raise nearly anything."""
    try:
        yield
    except DataError:
        raise
    except Exception as error:
        raise DataError(f"{name} cannot be read ({one_line(error)}): check that it is complete and readable") from error
