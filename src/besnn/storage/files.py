"""Write files so that no reader ever sees half of one."""

import contextlib
import glob
import os
import secrets
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from besnn.errors import DataError, one_line

ABANDONED = 3600.0
"""Seconds after which an unfinished file counts as left behind by a killed writer."""


@contextlib.contextmanager
def atomic_path(target: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path beside `target`; at the end the file written there replaces the target, whole or not at all.

    A link is kept and its target replaced, permissions are kept, and a device or pipe is written to directly.
    """
    target = Path(target)
    if target.exists() and not target.is_file() and not target.is_dir():
        yield target
        return
    target = Path(os.path.realpath(target))
    target.parent.mkdir(parents=True, exist_ok=True)
    remove_partials(target.parent, glob.escape(target.stem), older_than=ABANDONED)
    # The suffix stays last: writers choose the format by it.
    path = target.with_name(f".{target.stem}-{secrets.token_hex(8)}.partial{target.suffix}")
    path.touch(exist_ok=False)
    # a writer that creates the file again may give it narrower permissions
    permissions = (target if target.exists() else path).stat().st_mode
    try:
        yield path
        with path.open("rb+") as written:
            os.fsync(written.fileno())
        path.chmod(permissions)
        path.replace(target)
        sync_folder(target.parent)
    finally:
        path.unlink(missing_ok=True)


@contextlib.contextmanager
def whole_file(target: str | os.PathLike[str]) -> Iterator[Path]:
    """Do the same as `atomic_path`, with one clear line when the file cannot be written."""
    with writing(target), atomic_path(target) as partial:
        yield partial


@contextlib.contextmanager
def writing(target: str | os.PathLike[str]) -> Iterator[None]:
    """Turn errors of the operating system into one clear line that names the target."""
    try:
        yield
    except DataError:  # what is written came from data that cannot be read
        raise
    except OSError as error:
        raise DataError(f"cannot write {target}: {error.strerror or one_line(error)}") from None


@contextlib.contextmanager
def whole_folder(target: Path) -> Iterator[Path]:
    """Yield a new folder beside `target`, which replaces it at the end by renaming; killed in between, there may be neither."""
    new, old = (target.with_name(f".{target.name}.{state}") for state in ("new", "old"))
    for left in (new, old):
        shutil.rmtree(left, ignore_errors=True)
    new.mkdir(parents=True)
    try:
        yield new
        if target.exists():
            target.rename(old)
        new.rename(target)
    finally:
        for left in (new, old):
            shutil.rmtree(left, ignore_errors=True)


def sync_folder(folder: Path) -> None:
    """Make a rename in a folder last through a loss of power; on Windows, where folders cannot be opened, it does by itself."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def remove_partials(folder: Path, stem: str = "*", older_than: float = 0.0) -> None:
    """Remove partial files called `stem` (a pattern) that are older than some seconds from a folder: killed writers left them.

    With 0 seconds, no other process may be writing there.
    """
    for path in folder.glob(f".{stem}-*.partial*"):
        with contextlib.suppress(FileNotFoundError):  # its writer may have finished
            if time.time() - path.stat().st_mtime >= older_than:
                path.unlink()
