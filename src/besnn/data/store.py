"""The data folder: find the official files of built-in sets in it, and compare them with what was published."""

import gzip
import hashlib
import os
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import pooch

from besnn.data.catalogue import DatasetInfo, OfficialFile, require_name
from besnn.data.formats import PARSERS, Records
from besnn.errors import DataError, one_line


class Status(StrEnum):
    """How a file compares with the official one."""

    OK = "ok"
    PARTIAL = "partial"
    ALTERED = "altered"
    MISSING = "missing"


@dataclass(frozen=True)
class FileStatus:
    """What was found of one official file.

    Attributes:
        path: where the file lies, or would lie.
        status: `ok` (the official content), `partial` (sound, but fewer records: usable), `altered` or `missing`.
        detail: what is wrong; empty where all is well.
    """

    path: Path
    status: Status
    detail: str = ""


@dataclass(frozen=True, eq=False)
class FileContent:
    """One official file as found: its status, the SHA-256 of its unpacked content, and its records where usable."""

    status: FileStatus
    sha256: str = ""
    records: Records | None = None


def data_root(data_dir: str | Path | None = None) -> Path:
    """Return the data folder: the one given, else `$BESNN_DATA`, else a folder in the user's cache."""
    return Path(data_dir or os.environ.get("BESNN_DATA") or pooch.os_cache("besnn")).expanduser()


def verify(name: str, data_dir: str | Path | None = None) -> list[FileStatus]:
    """Compare the files of a built-in set (`mnist`, or one split: `mnist:test`) with the official ones.

    Example:
        >>> verify("digits")  # made, not read from files
        []
    """
    info, files = official_files(name)
    return [read_official(info, file, data_root(data_dir)).status for file in files]


def official_files(name: str) -> tuple[DatasetInfo, Sequence[OfficialFile]]:
    """Return a built-in set and its files: those of all splits, or of the one named."""
    info, split = require_name(name)
    return info, [file for each, files in info.files.items() if split in (None, each) for file in files]


def read_official(info: DatasetInfo, file: OfficialFile, root: Path) -> FileContent:
    """Read one file of a set from the folder `root`, unpacked or gzipped."""
    candidates = (root / file.path, root / f"{file.path}.gz")
    path = next((path for path in candidates if path.is_file()), None)
    if path is None:
        return FileContent(FileStatus(root / file.path, Status.MISSING, f"fetch it: besnn data fetch {info.name}"))
    try:
        content = unpacked(path)
        records = PARSERS[info.format](content, str(path))
    except DataError as error:
        return FileContent(FileStatus(path, Status.ALTERED, str(error)))
    sha256 = hashlib.sha256(content).hexdigest()
    if sha256 == file.sha256:
        return FileContent(FileStatus(path, Status.OK), sha256, records)
    if len(records) < file.records:
        detail = f"{len(records):,} of {file.records:,} records"
        return FileContent(FileStatus(path, Status.PARTIAL, detail), sha256, records)
    detail = f"{path} has SHA-256 {sha256}, not the official {file.sha256}: remove it and fetch it again"
    return FileContent(FileStatus(path, Status.ALTERED, detail), sha256)


def unpacked(path: Path) -> bytes:
    """Return the content of a file, unpacked if it is gzipped."""
    data = path.read_bytes()
    try:
        return gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"{path} is a damaged gzip file ({one_line(error)}): fetch it again") from error
