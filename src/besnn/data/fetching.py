"""Bring official files into the data folder: downloaded, checked, and only then moved into place."""

import hashlib
import os
import tarfile
from collections.abc import Sequence
from pathlib import Path

from besnn.data.catalogue import DatasetInfo, OfficialFile
from besnn.data.download import download
from besnn.data.store import FileStatus, Status, data_root, official_files, read_official, unpacked, verify
from besnn.errors import DataError


def fetch(name: str, data_dir: str | Path | None = None, *, progress: bool = True) -> list[FileStatus]:
    """Download what a built-in set (`mnist`, or one split: `mnist:test`) lacks, or has only in part or altered.

    Fetch before starting several processes: two that download one file at once spoil it for each other, which the
    check finds.

    Example:
        >>> fetch("two-moons")  # made, not downloaded
        []
    """
    info, files = official_files(name)
    fetch_files(info, files, data_root(data_dir), progress=progress)
    return verify(name, data_dir)


def fetch_files(info: DatasetInfo, files: Sequence[OfficialFile], root: Path, *, progress: bool = True) -> None:
    """Download those files of a set whose official content is not in the folder `root`."""
    wanted = [file for file in files if read_official(info, file, root).status.status is not Status.OK]
    for urls in dict.fromkeys(file.urls for file in wanted):
        _install(urls, [file for file in wanted if file.urls == urls], root, progress=progress)


def _install(urls: Sequence[str], files: Sequence[OfficialFile], root: Path, *, progress: bool) -> None:
    """Download one address and put the files that come from it into place."""
    name = urls[0].rsplit("/", 1)[-1]
    archived = bool(files[0].member)
    target = root / name if archived else (root / files[0].path).with_name(name)
    part = target.with_name(f"{name}.part")
    _download_first(urls, part, progress=progress)
    try:
        _check(part.read_bytes() if archived else unpacked(part), files[0].archive_sha256 or files[0].sha256, part)
    except DataError:
        part.unlink()  # resuming cannot mend wrong content
        raise
    if archived:
        _extract(part, files, root)
    else:
        (root / files[0].path).unlink(missing_ok=True)  # an altered unpacked copy would be read instead
        os.replace(part, target)


def _download_first(urls: Sequence[str], part: Path, *, progress: bool) -> None:
    """Download from the first address that answers."""
    for mirror in urls[:-1]:
        try:
            download(mirror, part, progress=progress)
        except DataError:
            continue
        return
    download(urls[-1], part, progress=progress)


def _check(content: bytes, sha256: str, source: Path) -> None:
    """Raise unless the content is the official one."""
    found = hashlib.sha256(content).hexdigest()
    if found != sha256:
        raise DataError(f"{source} came with SHA-256 {found}, not {sha256}: it was removed; try again later")


def _extract(archive: Path, files: Sequence[OfficialFile], root: Path) -> None:
    """Take the wanted files out of a checked archive and remove it; nothing else in it is written anywhere."""
    with tarfile.open(archive) as contents:
        for file in files:
            member = contents.getmember(file.member)
            packed = contents.extractfile(member) if member.isreg() else None
            if packed is None:
                raise DataError(f"{archive} holds no plain file {file.member}: remove it and fetch again")
            target = root / file.path
            unfinished = target.with_name(f"{target.name}.part")
            target.parent.mkdir(parents=True, exist_ok=True)
            unfinished.write_bytes(packed.read())
            os.replace(unfinished, target)
    archive.unlink()
