"""A text file whose bytes are made valid UTF-8 on the way in."""

import codecs
import io
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer


class Utf8File(io.RawIOBase):
    r"""Reads a file; a byte that is not UTF-8 becomes its escape, such as the four characters `\xff`.

    pyarrow would stop at the first such byte, wherever it is; so it spoils its own cell only.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._file = path.open("rb")
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="backslashreplace")
        self._ready = b""

    def readable(self) -> bool:
        """Whether it can be read: yes."""
        return True

    def readinto(self, buffer: "WriteableBuffer", /) -> int:
        """Fill a buffer as far as may be; return how many bytes that is, 0 at the end of the file."""
        target = memoryview(buffer)
        while not self._ready:
            data = self._file.read(len(target))
            self._ready = self._decoder.decode(data, final=not data).encode()
            if not data:
                break
        count = min(len(target), len(self._ready))
        target[:count], self._ready = self._ready[:count], self._ready[count:]
        return count

    def close(self) -> None:
        """Close the file."""
        self._file.close()
        super().close()
