"""Downloads that resume where a broken one stopped."""

import time
from pathlib import Path
from typing import IO, Protocol

import pooch

from besnn.errors import DataError, one_line

ATTEMPTS = 3
"""How many attempts in a row may bring nothing before an address is given up."""


class _Response(Protocol):
    status_code: int

    def close(self) -> None: ...


def download(url: str, part: Path, *, progress: bool = True, pause: float = 1.0) -> None:
    """Download an address into `part`, going on from the bytes already there.

    The content is not checked here: a caller verifies `part` and moves it into place, so that no half file ever has a
    final name.

    Args:
        url: what to download.
        part: the file to fill; kept when the download fails, so that the next call resumes.
        progress: whether to draw pooch's progress bar.
        pause: seconds to wait before trying again after a broken connection.
    """
    fruitless = 0
    while True:
        before = _size(part)
        try:
            part.parent.mkdir(parents=True, exist_ok=True)
            with part.open("ab") as file:
                _request(url, file, offset=before, progress=progress)
            return
        except OSError as error:  # of which every error of requests is one
            response: _Response | None = getattr(error, "response", None)
            status = 0 if response is None else response.status_code
            if status == 416:  # nothing lies beyond what we have: the last run was stopped just after its last byte
                return
            fruitless = 0 if _size(part) > before else fruitless + 1
            if fruitless == ATTEMPTS or 400 <= status < 500:
                kept = f", {_size(part):,} bytes are kept in {part}" if _size(part) else ""
                remedy = f"try again later, or put the file into {part.parent} by hand"
                raise DataError(f"cannot download {url} ({one_line(error)}){kept}: {remedy}") from error
        time.sleep(pause)


def _request(url: str, file: IO[bytes], *, offset: int, progress: bool) -> None:
    """Append what lies beyond `offset` to the file; start over where the server can only send the whole."""
    responses: list[_Response] = []

    def restart_if_whole(response: _Response, **_: object) -> None:
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
