import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from besnn.data.official import official_files


@pytest.fixture
def real_set(real_data_dir: Path) -> Callable[[str], Path]:
    """Return the folder of the real data for a test that needs one set of it; skip the test if the set is not there."""

    def find(name: str) -> Path:
        for file in official_files(name)[1]:
            if not any((real_data_dir / path).is_file() for path in (file.path, f"{file.path}.gz")):
                pytest.skip(f"needs {real_data_dir / file.path}")
        return real_data_dir

    return find


@dataclass
class FileServer:
    """An HTTP server of bytes kept in memory that can break off in the middle of a response."""

    url: str
    files: dict[str, bytes] = field(default_factory=dict)
    ranges: bool = True
    break_after: list[int] = field(default_factory=list)
    """Bytes after which the next responses break off, one entry per response."""
    requested: list[str | None] = field(default_factory=list)
    """The Range header of every request so far."""


def _handler(server: FileServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            wanted = self.headers.get("Range")
            server.requested.append(wanted)
            content = server.files.get(self.path.lstrip("/"))
            if content is None:
                self.send_error(404)
                return
            start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted and server.ranges else 0
            if start and start >= len(content):
                self.send_error(416)
                return
            self.send_response(206 if start else 200)
            self.send_header("Content-Length", str(len(content) - start))
            if start:
                self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
            self.end_headers()
            end = start + server.break_after.pop(0) if server.break_after else len(content)
            self.wfile.write(content[start:end])

        def log_message(self, *_: object) -> None:
            pass

    return Handler


@pytest.fixture
def file_server() -> Iterator[FileServer]:
    server = FileServer(url="")
    http = ThreadingHTTPServer(("127.0.0.1", 0), _handler(server))
    server.url = f"http://127.0.0.1:{http.server_port}"
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    http.shutdown()
    thread.join()
    http.server_close()


@pytest.fixture
def one_line() -> Callable[[pytest.ExceptionInfo[BaseException], str], None]:
    """Check that an error is a single line that says some words."""

    def check(caught: pytest.ExceptionInfo[BaseException], *words: str) -> None:
        message = str(caught.value)
        assert "\n" not in message
        for word in words:
            assert word in message

    return check
