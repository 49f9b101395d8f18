"""Help for messages that name files."""

import os


def writable(text: str) -> str:
    r"""Return a text that holds a file's name, with bytes of it that are not UTF-8 replaced: so it can be written anywhere.

    Example:
        >>> writable("photo-\udcff.png")
        'photo-\ufffd.png'
    """
    return os.fsencode(text).decode(errors="replace")
