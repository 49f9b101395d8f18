"""Writing files so that nobody ever sees half of one."""

import contextlib
import glob
import os
import secrets
import time
from collections.abc import Iterator
from pathlib import Path

ABANDONED = 3600.0
"""Seconds after which an unfinished file is taken to be that of a writer that was killed."""


@contextlib.contextmanager
def atomic_path(target: str | os.PathLike[str]) -> Iterator[Path]:
    """Yields a temporary path beside `target`; what was written there takes target's place at the end, whole or not at all.

    A link stays and what it leads to is replaced, a file's permissions stay, and a device or pipe is written to as it is.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> with atomic_path(folder / "a.txt") as path:
    ...     _ = path.write_text("whole")
    >>> [p.name for p in folder.iterdir()]
    ['a.txt']
    """
    target = Path(target)
    if target.exists() and not target.is_file() and not target.is_dir():
        yield target
        return
    target = Path(os.path.realpath(target))
    target.parent.mkdir(parents=True, exist_ok=True)
    remove_partials(target.parent, glob.escape(target.stem), older_than=ABANDONED)
    # The suffix stays last: writers choose a format by it.
    path = target.with_name(f".{target.stem}-{secrets.token_hex(4)}.partial{target.suffix}")
    path.touch(exist_ok=False)
    # a writer that makes the file anew may give it narrower ones
    permissions = (target if target.exists() else path).stat().st_mode
    try:
        yield path
        with path.open("rb+") as written:
            os.fsync(written.fileno())
        path.chmod(permissions)
        path.replace(target)
    finally:
        path.unlink(missing_ok=True)


def remove_partials(folder: Path, stem: str = "*", older_than: float = 0.0) -> None:
    """Removes what killed writers left of files called `stem` (a pattern) in a folder.

    With an age of 0 seconds no other process may be writing there.
    """
    for path in folder.glob(f".{stem}-*.partial*"):
        with contextlib.suppress(FileNotFoundError):  # its writer may be done with it by now
            if time.time() - path.stat().st_mtime >= older_than:
                path.unlink()
