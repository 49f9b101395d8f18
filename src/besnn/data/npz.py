"""Arrays in an `.npz`: `images` or `X`, and perhaps `labels` or `y`; read slice by slice, never unpickled."""

import math
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
from numpy.lib import format as npy

from besnn.data.arrays import Rows, inputs_from_rows
from besnn.data.dataset import Dataset
from besnn.data.rows import Block, Label, collect
from besnn.errors import DataError, one_line

BLOCK_ROWS = 1024
INPUTS, LABELS = ("images", "X"), ("labels", "y")
_HEADER_READERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


@dataclass(frozen=True)
class StoredArray:
    """One array of an open archive: what its header says, and its rows a block at a time."""

    shape: tuple[int, ...]
    fortran_order: bool
    dtype: np.dtype[np.generic]
    file: IO[bytes]

    def blocks(self) -> Iterator[Rows]:
        """Yield the rows, in order."""
        # In Fortran order the rows lie scattered through the whole file: there is no reading it in slices.
        whole = self._read(self.shape[::-1]).T if self.fortran_order else None
        for start in range(0, self.shape[0], BLOCK_ROWS):
            end = min(start + BLOCK_ROWS, self.shape[0])
            yield self._read((end - start, *self.shape[1:])) if whole is None else whole[start:end]

    def _read(self, shape: tuple[int, ...]) -> Rows:
        data = self.file.read(math.prod(shape) * self.dtype.itemsize)
        return np.frombuffer(data, self.dtype, count=math.prod(shape)).reshape(shape)


def load_npz(path: Path) -> Dataset:
    """Load the inputs and labels of an `.npz` whole; `besnn.data.arrays` says which arrays do."""
    with _open(path) as archive:
        labelled = _find(archive, LABELS) is not None
    return collect(read_blocks(path, labelled=labelled), path, labelled=labelled)


def read_blocks(path: Path, *, labelled: bool = False) -> Iterator[Block]:
    """Yield the rows of an `.npz`, in order; a bad row carries its reason and does not stop the rest."""
    with _open(path) as archive, _stored_array(archive, INPUTS) as stored:
        if not labelled:
            yield from (_block(rows, labels=[]) for rows in stored.blocks())
            return
        with _stored_array(archive, LABELS) as labels:
            if labels.shape != stored.shape[:1]:
                raise ValueError(f"labels of shape {list(labels.shape)} for {stored.shape[0]} inputs")
            for rows, cells in zip(stored.blocks(), labels.blocks(), strict=True):
                yield _block(rows, labels=cells.tolist())


def _block(rows: Rows, labels: list[Label]) -> Block:
    return Block(*inputs_from_rows(rows), labels, exact=rows if rows.ndim == 2 else None)


@contextmanager
def _open(path: Path) -> Iterator[zipfile.ZipFile]:
    """Open an archive; whatever turns out wrong with it until the end of the block is a DataError."""
    try:
        with zipfile.ZipFile(path) as archive:
            yield archive
    except (ValueError, OSError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
        raise DataError(f"{path} cannot be read ({one_line(error)}): save it again with numpy.savez") from error


def _find(archive: zipfile.ZipFile, names: Sequence[str]) -> str | None:
    """The first of some names that the archive holds an array under."""
    return next((name for name in names if f"{name}.npy" in archive.namelist()), None)


@contextmanager
def _stored_array(archive: zipfile.ZipFile, names: Sequence[str]) -> Iterator[StoredArray]:
    """Open an array of the archive and read its header."""
    name = _find(archive, names)
    if name is None:
        raise ValueError(f"no array is called {' or '.join(names)}")
    with archive.open(f"{name}.npy") as file:
        version = npy.read_magic(file)
        if version not in _HEADER_READERS:
            raise ValueError(f"{name} is in version {version} of numpy's format")
        shape, fortran_order, dtype = _HEADER_READERS[version](file)
        if dtype.hasobject:
            raise ValueError(f"{name} holds Python objects, which are never unpickled")
        if not shape:
            raise ValueError(f"{name} is a single number, not one row an input")
        yield StoredArray(shape, fortran_order, dtype, file)
