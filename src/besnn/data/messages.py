"""Help for error messages, which are one line each."""

import os


def one_line(message: Exception | str) -> str:
    r"""Return what another library's error (or a name out of a file) says, on a single line.

    Example:
        >>> one_line(ValueError("bad header:\n  too short"))
        'bad header: too short'
    """
    return " ".join(str(message).split()) or type(message).__name__


def writable(text: str) -> str:
    r"""Return a text that holds a file's name, with bytes of it that are not UTF-8 replaced: so it can be written anywhere.

    Example:
        >>> writable("photo-\udcff.png")
        'photo-\ufffd.png'
    """
    return os.fsencode(text).decode(errors="replace")
