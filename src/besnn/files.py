"""Writing files so that nobody ever sees half of one."""

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def atomic_path(target: str | os.PathLike[str]) -> Iterator[Path]:
    """Yields a temporary path beside `target`; what was written there takes target's place at the end, whole or not at all.

    >>> folder = Path(tempfile.mkdtemp())
    >>> with atomic_path(folder / "a.txt") as path:
    ...     _ = path.write_text("whole")
    >>> [p.name for p in folder.iterdir()]
    ['a.txt']
    """
    target = Path(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    # The suffix stays last: writers choose a format by it.
    descriptor, name = tempfile.mkstemp(prefix=f".{target.stem}-", suffix=f".partial{target.suffix}", dir=target.parent)
    os.close(descriptor)
    path = Path(name)
    try:
        yield path
        with path.open("rb+") as written:
            os.fsync(written.fileno())
        path.chmod(0o666 & ~_umask())
        path.replace(target)
    finally:
        path.unlink(missing_ok=True)


def remove_partials(folder: Path) -> None:
    """Removes what writers that were killed left behind in a folder; no other process may be writing there."""
    for path in folder.glob(".*-*.partial*"):
        path.unlink(missing_ok=True)


def _umask() -> int:
    current = os.umask(0o022)
    os.umask(current)
    return current
