"""The official files of built-in sets: find them in the data folder, parse them, compare them with what was published."""

import gzip
import hashlib
import io
import math
import os
import struct
import zipfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

import numpy as np
import pooch
from numpy.typing import NDArray

from besnn.data.catalogue import DatasetInfo, OfficialFile, require_name
from besnn.errors import DataError, one_line


class Status(StrEnum):
    """How a file compares with the official one.

    >>> [str(status) for status in Status]
    ['ok', 'partial', 'altered', 'missing']
    """

    OK = "ok"
    PARTIAL = "partial"  # sound, but fewer records: usable
    ALTERED = "altered"
    MISSING = "missing"


@dataclass(frozen=True, eq=False)
class Records:
    """Images `uint8 [n, c, h, w]` and labels `int64 [n]`; a file in MNIST's format holds only one of the two."""

    images: NDArray[np.uint8] | None
    labels: NDArray[np.int64] | None

    def __len__(self) -> int:
        return max(len(array) for array in (self.images, self.labels) if array is not None)


@dataclass(frozen=True, eq=False)
class FileStatus:
    """An official file as found.

    Attributes:
        path: where the file lies, or would lie.
        status: how it compares with the official one.
        detail: what is wrong; empty if nothing is.
        sha256: of the unpacked content.
        records: what the file holds, if it has been read and is usable.

    >>> [(file.path.name, str(file.status)) for file in verify("mnist:test", "an-empty-folder")]
    [('t10k-images-idx3-ubyte', 'missing'), ('t10k-labels-idx1-ubyte', 'missing')]
    """

    path: Path
    status: Status
    detail: str = ""
    sha256: str = ""
    records: Records | None = None


def data_root(data_dir: str | Path | None = None) -> Path:
    """Return the data folder: the one given, else `$BESNN_DATA`, else a folder in the user's cache.

    >>> data_root("datasets").name
    'datasets'
    """
    return Path(data_dir or os.environ.get("BESNN_DATA") or pooch.os_cache("besnn")).expanduser()


def verify(name: str, data_dir: str | Path | None = None) -> list[FileStatus]:
    """Compare the files of a built-in set (`mnist`, or one split: `mnist:test`) with the official ones.

    >>> {file.status for file in verify("mnist", "an-empty-folder")}
    {<Status.MISSING: 'missing'>}
    """
    info, files = official_files(name)
    return [replace(read_official(info, file, data_root(data_dir)), records=None) for file in files]


def official_files(name: str) -> tuple[DatasetInfo, Sequence[OfficialFile]]:
    """Return a built-in set and its files: those of all splits, or of the one named."""
    info, split = require_name(name)
    return info, [file for each, files in info.files.items() if split in (None, each) for file in files]


def read_official(info: DatasetInfo, file: OfficialFile, root: Path) -> FileStatus:
    """Read one file of a set from the folder `root`, unpacked or gzipped."""
    path = next((path for path in (root / file.path, root / f"{file.path}.gz") if path.is_file()), None)
    if path is None:
        return FileStatus(root / file.path, Status.MISSING, f"fetch it: besnn data fetch {info.name}")
    try:
        content = unpacked(path)
        records = PARSERS[info.format](content, str(path))
    except OSError as error:  # a DataError is one
        return FileStatus(path, Status.ALTERED, one_line(error))
    sha256 = hashlib.sha256(content).hexdigest()
    if sha256 == file.sha256:
        return FileStatus(path, Status.OK, "", sha256, records)
    if len(records) < file.records:
        return FileStatus(path, Status.PARTIAL, f"{len(records):,} of {file.records:,} records", sha256, records)
    detail = f"{path} has SHA-256 {sha256}, not the official {file.sha256}: remove it and fetch it again"
    return FileStatus(path, Status.ALTERED, detail, sha256)


def unpacked(path: Path) -> bytes:
    """Return the content of a file, unpacked if it is gzipped; of a zip archive, its members in order of their names."""
    data = path.read_bytes()
    try:
        if data[:2] == b"PK":
            with zipfile.ZipFile(io.BytesIO(data)) as archive:
                return b"".join(archive.read(name) for name in sorted(archive.namelist()))
        return gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
    except (EOFError, gzip.BadGzipFile, zipfile.BadZipFile, zlib.error) as error:
        raise DataError(f"{path} is a damaged archive ({one_line(error)}): fetch it again") from error


def parse_idx(content: bytes, name: str) -> Records:
    """Parse MNIST's format: a magic number, the sizes, then one byte per value."""
    dimensions = content[3] if len(content) >= 4 and content[:3] == b"\0\0\x08" else 0
    if dimensions not in (1, 3):
        raise DataError(f"{name} is not an idx file of images or labels (it begins with {content[:4].hex()!r})")
    header = 4 + 4 * dimensions
    if len(content) < header:
        raise DataError(f"{name} is truncated in its header: fetch it again")
    shape = struct.unpack(f">{dimensions}I", content[4:header])
    if len(content) != header + math.prod(shape):
        raise DataError(f"{name} holds {len(content) - header:,} values, but its header says {list(shape)}: fetch it again")
    values = np.frombuffer(content, np.uint8, offset=header).reshape(shape).copy()  # the copy is writable
    return Records(values[:, None], None) if dimensions == 3 else Records(None, values.astype(np.int64))


def parse_cifar(content: bytes, name: str) -> Records:
    """Parse CIFAR-10's binary version: for every image a label byte, then 3 x 32 x 32 pixel bytes."""
    size = 1 + 3 * 32 * 32
    if not content or len(content) % size:
        raise DataError(f"{name} holds {len(content):,} bytes, not a multiple of {size}: fetch it again")
    records = np.frombuffer(content, np.uint8).reshape(-1, size)
    return Records(records[:, 1:].reshape(-1, 3, 32, 32), records[:, 0].astype(np.int64))


def parse_svhn(content: bytes, name: str) -> Records:
    """Parse SVHN's cropped digits: a Matlab file with `X [32, 32, 3, n]` and `y [n, 1]`, where 10 stands for digit 0."""
    from scipy.io import loadmat  # slow to import, and needed for this one set

    try:
        variables = loadmat(io.BytesIO(content), variable_names=("X", "y"))
        images, labels = variables["X"], variables["y"].ravel().astype(np.int64)
        if images.dtype != np.uint8 or images.shape != (32, 32, 3, len(labels)):
            raise ValueError(f"X is {images.dtype} {list(images.shape)} for {len(labels)} labels")
    except Exception as error:  # SciPy's reader raises nearly anything on a malformed file
        raise DataError(f"{name} is not an SVHN file of cropped digits ({one_line(error)}): fetch it again") from error
    return Records(np.ascontiguousarray(images.transpose(3, 2, 0, 1)), labels % 10)


def parse_npz(content: bytes, name: str) -> Records:
    """Parse the unpacked members of an .npz: `images uint8 [n, h, w, c]`, then `labels [n]`."""
    stream = io.BytesIO(content)
    try:
        images, labels = (np.lib.format.read_array(stream, allow_pickle=False) for _ in range(2))
        if images.dtype != np.uint8 or images.ndim != 4 or labels.shape != images.shape[:1]:
            raise ValueError(f"images are {images.dtype} {list(images.shape)} and labels {list(labels.shape)}")
    except (ValueError, EOFError) as error:
        raise DataError(f"{name} does not hold images and labels ({one_line(error)}): replace the file") from error
    return Records(np.ascontiguousarray(images.transpose(0, 3, 1, 2)), labels.astype(np.int64))


PARSERS: dict[str, Callable[[bytes, str], Records]] = {
    "idx": parse_idx,
    "cifar": parse_cifar,
    "svhn": parse_svhn,
    "npz": parse_npz,
}
