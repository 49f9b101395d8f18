"""Text files as valid UTF-8."""

import codecs
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

BLOCK = 1 << 20


@contextmanager
def valid_utf8(path: Path) -> Iterator[Path]:
    r"""Yields a file of valid UTF-8: this one, or a copy in which a byte that is not UTF-8 is its escape, such as `\xff`.

    pyarrow would stop at the first such byte, wherever it is; so it spoils its own cell only. It is given a file: from a Python
    object a thread of pyarrow's would read ahead, and abort the process if that ends meanwhile.
    """
    if _is_valid(path):
        yield path
        return
    with tempfile.NamedTemporaryFile() as copy, path.open(encoding="utf-8", errors="backslashreplace", newline="") as text:
        for part in iter(lambda: text.read(BLOCK), ""):
            copy.write(part.encode())
        copy.flush()
        yield Path(copy.name)


def _is_valid(path: Path) -> bool:
    decoder = codecs.getincrementaldecoder("utf-8")()
    with path.open("rb") as file:
        try:
            for part in iter(lambda: file.read(BLOCK), b""):
                decoder.decode(part)
            decoder.decode(b"", final=True)
        except UnicodeDecodeError:
            return False
    return True
