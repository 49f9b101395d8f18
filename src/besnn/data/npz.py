"""Arrays in an `.npz` file: `images` or `X`, and optionally `labels` or `y`; read in slices, never unpickled."""

import io
import math
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from besnn.data.rows import Rows, rows_from_array

BLOCK_ROWS = 1024
BLOCK_BYTES = 64 * 2**20
MAX_RATIO, SMALL = 200, 2**28
"""An array of over `SMALL` bytes that was compressed to less than one byte in `MAX_RATIO` is refused as a bomb."""

INPUTS, LABELS = ("images", "X"), ("labels", "y")
_HEADER_BYTES = 16 * 1024  # numpy reads no header of more than 10,000 bytes
_HEADER_READERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


class Npz:
    """NumPy's archive of arrays (a `besnn.data.Format`); `rows_from_array` says which arrays are accepted."""

    is_table = False

    def columns(self, path: Path) -> tuple[str, ...]:
        """Return no names: the columns of an array have none."""
        return ()

    def count(self, path: Path) -> int:
        """Return the number of rows, from the header."""
        with zipfile.ZipFile(path) as archive, _stored_array(archive, INPUTS) as stored:
            return stored.shape[0]

    def read(self, path: Path, columns: Sequence[str], label: str | None = None) -> Iterator[Rows]:
        """Yield all rows in order, with the archive's labels unless `label` is None."""
        with zipfile.ZipFile(path) as archive, _stored_array(archive, INPUTS) as stored:
            if label is None or _find(archive, LABELS) is None:
                yield from map(rows_from_array, stored.blocks())
                return
            with _stored_array(archive, LABELS) as labels:
                if labels.shape != stored.shape[:1]:
                    raise ValueError(f"labels of shape {list(labels.shape)} for {stored.shape[0]} inputs")
                for block, values in zip(stored.blocks(), labels.blocks(stored.block_rows), strict=True):
                    yield rows_from_array(block, values.tolist())


@dataclass(frozen=True)
class _StoredArray:
    """One array of an open archive: its header, and the file with its numbers."""

    shape: tuple[int, ...]
    fortran_order: bool
    dtype: np.dtype[np.generic]
    file: IO[bytes]

    @property
    def block_rows(self) -> int:
        """The number of rows to read at a time."""
        row_bytes = math.prod(self.shape[1:]) * self.dtype.itemsize
        return max(1, min(BLOCK_ROWS, BLOCK_BYTES // row_bytes))

    def blocks(self, rows: int | None = None) -> Iterator[NDArray[np.generic]]:
        """Yield the rows in order, some at a time: `rows`, or `block_rows` unless given."""
        # In Fortran order a row is scattered over the whole file, so the file cannot be read in slices.
        whole = self._read(self.shape[::-1]).T if self.fortran_order else None
        step = self.block_rows if rows is None else rows
        for start in range(0, self.shape[0], step):
            end = min(start + step, self.shape[0])
            yield self._read((end - start, *self.shape[1:])) if whole is None else whole[start:end]

    def _read(self, shape: tuple[int, ...]) -> NDArray[np.generic]:
        data = self.file.read(math.prod(shape) * self.dtype.itemsize)
        return np.frombuffer(data, self.dtype, count=math.prod(shape)).reshape(shape)


def _find(archive: zipfile.ZipFile, names: Sequence[str]) -> str | None:
    return next((name for name in names if f"{name}.npy" in archive.namelist()), None)


@contextmanager
def _stored_array(archive: zipfile.ZipFile, names: Sequence[str]) -> Iterator[_StoredArray]:
    name = _find(archive, names)
    if name is None:
        raise ValueError(f"no array is called {' or '.join(names)}")
    with archive.open(f"{name}.npy") as file:
        start = io.BytesIO(file.read(_HEADER_BYTES))  # not from the file: a header may claim any length
        version = npy.read_magic(start)
        if version not in _HEADER_READERS:
            raise ValueError(f"{name} is in version {version} of numpy's format")
        shape, fortran_order, dtype = _HEADER_READERS[version](start)
        if dtype.hasobject:
            raise ValueError(f"{name} holds Python objects, which are never unpickled")
        _check_size(name, shape, dtype, archive.getinfo(f"{name}.npy"), start.tell())
        file.seek(start.tell())
        yield _StoredArray(shape, fortran_order, dtype, file)


def _check_size(name: str, shape: tuple[int, ...], dtype: np.dtype[np.generic], info: zipfile.ZipInfo, header: int) -> None:
    """Compare what an array's header says with what the archive holds, before anything is unpacked."""
    if not shape:
        raise ValueError(f"{name} is a single number, not one row per input")
    if min(shape[1:], default=1) < 1 or shape[0] < 0 or dtype.itemsize == 0:
        raise ValueError(f"{name} has shape {list(shape)}, without any numbers")
    if info.file_size - header != math.prod(shape) * dtype.itemsize:
        held = f"{info.file_size - header:,} bytes"
        raise ValueError(f"{name} holds {held}, where its shape {list(shape)} needs {math.prod(shape) * dtype.itemsize:,}")
    if info.file_size > max(SMALL, MAX_RATIO * info.compress_size):
        raise ValueError(f"{name} unpacks from {info.compress_size:,} to {info.file_size:,} bytes, as no real data does")
