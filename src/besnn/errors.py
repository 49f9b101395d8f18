"""The errors besnn raises on purpose: one line each, naming the offending value and the remedy."""


class BesnnError(Exception):
    """Base of every deliberate error; its message is a single line fit to show a user."""


class InputError(BesnnError, ValueError):
    """A value handed to besnn is wrong: shape, dtype, range or content."""


class DataError(BesnnError, OSError):
    """A file or data set is missing, unreadable, truncated or not what it claims to be."""


class NotReadyError(BesnnError, RuntimeError):
    """A step of the life cycle (train, calibrate, score) was used before the one it needs."""


def printable(text: str) -> str:
    r"""A text with all that is no character to see as its escape: a name out of a file must not give a terminal orders.

    >>> print(printable("café \x1b[2J"))
    café \x1b[2J
    """
    return text if text.isprintable() else "".join(each if each.isprintable() else repr(each)[1:-1] for each in text)


def one_line(said: Exception | str) -> str:
    r"""What another library's error (or a text out of a file) says, on a single line; an error without words gives its name.

    >>> one_line(ValueError("bad header:\n  too short"))
    'bad header: too short'
    >>> one_line(KeyError())
    'KeyError'
    """
    line = printable(" ".join(str(said).split()))
    return line or (type(said).__name__ if isinstance(said, Exception) else "")
