"""Running the service: its socket, its HTTP protocol and its worker processes.

A new worker process imports this module before it can answer its supervisor, so it imports nothing heavy at the top.
"""

import gc
import hashlib
import logging
import os
import socket
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import uvicorn
from uvicorn.config import STARTUP_FAILURE
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.supervisors import Multiprocess

from besnn.errors import DataError
from besnn.serve.settings import Settings

if TYPE_CHECKING:
    from fastapi import FastAPI

    from besnn.detector import Detector
    from besnn.serve.examples import Example

MAX_HEAD_BYTES = 64 * 1024

_GRACE_SECONDS = 5  # how much longer than the deadline a stopping service waits for its last answers
_SILENT_SECONDS = 60  # how long a worker may fail to answer its supervisor before it is replaced
_SHARED_METRICS = "PROMETHEUS_MULTIPROC_DIR"  # the folder through which workers share their counts
_LOG = logging.getLogger(__name__)


def run(
    detector: "Detector",
    model: Path,
    settings: Settings,
    examples: "Sequence[Example]",
    listener: socket.socket,
    workers: int = 1,
) -> None:
    """Answer requests until the process is told to stop, then finish those already accepted.

    Each of several workers loads its own copy of the detector from the file `model`, and one that dies is replaced. If the
    file is gone or holds another model by then, all stop with a DataError: one address must not serve two models.
    """
    from besnn.serve.app import create_app
    from besnn.serve.telemetry import log_to_standard_error

    app = create_app(detector, settings, examples)  # reports what does not fit before any process is started
    log_to_standard_error()
    if workers == 1:
        freeze_objects()
        uvicorn.Server(_config(lambda: app, settings)).run([listener])
        return
    with tempfile.TemporaryDirectory(prefix="besnn-serve-") as folder:
        os.environ[_SHARED_METRICS] = folder
        shared = settings.model_copy(update={"drift_state": settings.drift_state or Path(folder) / "drift.sqlite"})
        make_app = WorkerApp(
            model=model,
            sha256=hashlib.sha256(model.read_bytes()).hexdigest(),
            settings=shared,
            examples=[example.model_dump() for example in examples],
            threads=max(1, (os.cpu_count() or 1) // workers),
            device=str(detector.device),
        )
        supervisor = Supervisor(_config(make_app, settings, workers), [listener])
        try:
            supervisor.run()
        finally:
            del os.environ[_SHARED_METRICS]
    if any(worker.exitcode == STARTUP_FAILURE for worker in supervisor.processes):
        raise DataError("a worker could not start (see the log), so all were stopped: start the service again")


class Supervisor(Multiprocess):
    """uvicorn's supervisor, except that the end of a worker also ends the wait for that worker's answer."""

    def keep_subprocess_alive(self) -> None:
        """Replace workers that have ended or do not answer."""
        for worker in self.processes:
            worker.child_conn.close()  # this process's copy of the worker's end, which would keep the pipe open
        super().keep_subprocess_alive()


@dataclass(frozen=True)
class WorkerApp:
    """Makes the service in a worker process, around the worker's own copy of the model."""

    model: Path
    sha256: str  # so that a worker that replaces another has the same model as the rest
    settings: Settings
    examples: list[dict[str, Any]]  # as plain values: their class is slow to import
    threads: int
    device: str

    def __call__(self) -> "FastAPI":
        """Return the service, or end the process if the file no longer holds the same model."""
        from besnn.serve.telemetry import log_to_standard_error

        log_to_standard_error()
        try:
            detector = self._load()
        except DataError as error:
            _LOG.error("model not loaded", extra={"fields": {"reason": str(error)}})
            sys.exit(STARTUP_FAILURE)  # the supervisor then stops all workers: another attempt would fail too
        import torch

        from besnn.serve.app import create_app
        from besnn.serve.examples import Example

        torch.set_num_threads(self.threads)
        examples = [Example.model_validate(example) for example in self.examples]
        app = create_app(detector.to(self.device), self.settings, examples)
        freeze_objects()
        return app

    def _load(self) -> "Detector":
        try:
            content = self.model.read_bytes()
        except OSError as error:
            raise DataError(f"cannot read {self.model} ({error.strerror}): start the service again") from None
        if hashlib.sha256(content).hexdigest() != self.sha256:
            raise DataError(f"{self.model} is not the file that the service was started with: start the service again")
        from besnn.detector import Detector

        return Detector.from_bytes(content)


class LimitedHeads(HttpToolsProtocol):
    """uvicorn's HTTP protocol with a limit on the request line and headers; the application limits only what follows."""

    _in_head, _ended, _unfinished = True, False, 0

    def on_headers_complete(self) -> None:
        """Note that the body follows."""
        self._in_head, self._unfinished = False, 0
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """Note that the next request's head follows."""
        super().on_message_complete()
        self._in_head, self._ended = True, True

    def data_received(self, data: bytes) -> None:
        """Handle received data; data in which a request ended do not count towards the next head."""
        self._ended = False
        super().data_received(data)
        if self._in_head and not self._ended:
            self._unfinished += len(data)
            if self._unfinished > MAX_HEAD_BYTES and not self.transport.is_closing():
                self.send_400_response(f"the request line and headers are longer than {MAX_HEAD_BYTES} bytes")


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens on an address; port 0 takes any free one."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=2048)
    except socket.gaierror as error:
        raise DataError(f"cannot find --host {host} ({error.strerror}): give a name or address of this machine") from None
    except OSError as error:
        reason = os.strerror(error.errno or 0)  # its own text repeats the address
        raise DataError(f"cannot listen on {host} port {port} ({reason}): choose another --host or --port") from None


def url_of(listener: socket.socket) -> str:
    """Return the URL of the page."""
    host, port, *_ = listener.getsockname()
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def freeze_objects() -> None:
    """Exempt all present objects, which live as long as the process, from garbage collection: scanning them takes time."""
    gc.collect()
    gc.freeze()


def _config(make_app: Callable[[], "FastAPI"], settings: Settings, workers: int = 1) -> uvicorn.Config:
    return uvicorn.Config(
        make_app,
        factory=True,
        workers=workers,
        log_config=None,
        access_log=False,
        server_header=False,
        http=LimitedHeads,
        ws="none",
        timeout_graceful_shutdown=int(settings.deadline_seconds) + _GRACE_SECONDS,
        timeout_worker_healthcheck=_SILENT_SECONDS,
    )
