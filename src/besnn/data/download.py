"""Download official files: resumed if broken off, checked, and only then moved into the data folder."""

import contextlib
import hashlib
import os
import tarfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import pooch

from besnn.data.catalogue import DatasetInfo, OfficialFile
from besnn.data.official import FileStatus, Status, data_root, official_files, read_official, unpacked, verify
from besnn.errors import DataError, one_line
from besnn.storage.files import atomic_path

ATTEMPTS = 3
"""How many attempts in a row may bring nothing before an address is given up."""


def fetch(name: str, data_dir: str | Path | None = None, *, progress: bool = True) -> list[FileStatus]:
    """Download the files of a built-in set (`mnist`, or one split: `mnist:test`) that are missing, partial or altered.

    Fetch before starting several processes: two that download the same file at once corrupt it, which the check detects.

    >>> fetch("two-moons")  # generated: it has no files
    []
    """
    info, files = official_files(name)
    fetch_files(info, files, data_root(data_dir), progress=progress)
    return verify(name, data_dir)


def fetch_files(info: DatasetInfo, files: Sequence[OfficialFile], root: Path, *, progress: bool = True) -> None:
    """Download those files of a set whose official content is not in the folder `root`."""
    wanted = [file for file in files if read_official(info, file, root).status is not Status.OK]
    if unpublished := [str(root / file.path) for file in wanted if not file.urls]:
        raise DataError(f"{info.name} cannot be downloaded: put its file at {', '.join(unpublished)}, or leave the set out")
    for urls in dict.fromkeys(file.urls for file in wanted):
        _install(urls, [file for file in wanted if file.urls == urls], root, progress=progress)


def _install(urls: Sequence[str], files: Sequence[OfficialFile], root: Path, *, progress: bool) -> None:
    """Download one address and put the files that come from it in place."""
    name = urls[0].rsplit("/", 1)[-1]
    archived = bool(files[0].archive_sha256)
    target = root / name if archived else (root / files[0].path).with_name(name)
    part = target.with_name(f"{name}.part")
    for mirror in urls[:-1]:
        with contextlib.suppress(DataError):
            download(mirror, part, progress=progress)
            break
    else:
        download(urls[-1], part, progress=progress)
    try:
        found = hashlib.sha256(part.read_bytes() if archived else unpacked(part)).hexdigest()
        official = files[0].archive_sha256 or files[0].sha256
        if found != official:
            raise DataError(f"{part} has SHA-256 {found}, not {official}: it was removed; try again later")
    except DataError:
        part.unlink()  # resuming cannot repair wrong content
        raise
    if archived:
        _extract(part, files, root)
    else:
        (root / files[0].path).unlink(missing_ok=True)  # an altered unpacked copy would be read instead
        os.replace(part, target)


def _extract(archive: Path, files: Sequence[OfficialFile], root: Path) -> None:
    """Extract the wanted files from a checked archive and remove it; nothing else in it is written anywhere."""
    with tarfile.open(archive) as contents:
        for file in files:
            member = contents.getmember(file.path)
            packed = contents.extractfile(member) if member.isreg() else None
            if packed is None:
                raise DataError(f"{archive} holds no plain file {file.path}: remove it and fetch again")
            with atomic_path(root / file.path) as partial:
                partial.write_bytes(packed.read())
    archive.unlink()


def download(url: str, part: Path, *, progress: bool = True, pause: float = 1.0) -> None:
    """Download an address into `part`, continuing after the bytes that are already there.

    The caller verifies `part` and moves it into place. If the download fails, `part` is kept and the next call resumes.
    `pause` is the number of seconds to wait before trying again after a broken connection.
    """
    fruitless = 0
    while True:
        before = _size(part)
        try:
            part.parent.mkdir(parents=True, exist_ok=True)
            with part.open("ab") as file:
                _request(url, file, offset=before, progress=progress)
            return
        except OSError as error:  # the base class of all errors of requests
            status = getattr(getattr(error, "response", None), "status_code", 0)
            if status == 416:  # nothing follows what is there: the last run stopped just after its last byte
                return
            fruitless = 0 if _size(part) > before else fruitless + 1
            if fruitless == ATTEMPTS or 400 <= status < 500:
                kept = f", {_size(part):,} bytes are kept in {part}" if _size(part) else ""
                remedy = f"try again later, or put the file into {part.parent} by hand"
                raise DataError(f"cannot download {url} ({one_line(error)}){kept}: {remedy}") from error
        time.sleep(pause)


def _request(url: str, file: IO[bytes], *, offset: int, progress: bool) -> None:
    """Append what follows `offset` to the file; start again if the server can only send the whole."""
    responses: list[Any] = []

    def restart_if_whole(response: Any, **_: object) -> None:
        responses.append(response)
        if response.status_code == 200:
            file.truncate(0)

    headers = {"Accept-Encoding": "identity"}  # a .gz must arrive as it is, not unpacked on the way
    if offset:
        headers["Range"] = f"bytes={offset}-"
    hooks = {"response": restart_if_whole}
    try:
        pooch.HTTPDownloader(progressbar=progress, chunk_size=1 << 16, headers=headers, hooks=hooks)(url, file, None)
    finally:
        for response in responses:  # pooch leaves them open
            response.close()


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
