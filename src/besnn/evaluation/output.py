"""Writing an evaluation's files: whole or not at all, with one clear line when it fails."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from besnn.errors import DataError
from besnn.storage.files import atomic_path


@contextmanager
def whole_file(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path; what is written there takes the place of ``path`` at the end.

    >>> import tempfile
    >>> target = Path(tempfile.mkdtemp()) / "page.html"
    >>> with whole_file(target) as partial:
    ...     _ = partial.write_text("whole")
    >>> target.read_text()
    'whole'
    """
    try:
        with atomic_path(path) as partial:
            yield partial
    except OSError as error:
        raise DataError(f"cannot write {path}: {error.strerror}") from None
