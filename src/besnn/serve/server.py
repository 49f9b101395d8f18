"""Running the service: its socket, and its worker processes.

A new worker process imports this module before anything else, so it imports nothing heavy at the top.
"""

import gc
import hashlib
import logging
import multiprocessing
import multiprocessing.connection
import os
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import uvicorn
from uvicorn.config import STARTUP_FAILURE

from besnn.errors import DataError
from besnn.serve.connections import Connection, Server
from besnn.serve.settings import Settings
from besnn.storage.signature import check_signature, model_key

if TYPE_CHECKING:
    from fastapi import FastAPI

    from besnn.detector import Detector
    from besnn.serve.examples import Example

_SPARE_DESCRIPTORS = 64  # for files, and for connections that are just being closed
_KILL_SECONDS = 2.0  # how much longer than its last requests a stopping worker may take
_SHARED_METRICS = "PROMETHEUS_MULTIPROC_DIR"  # the folder through which workers share their counts
_METRICS_BYTES = 2**20  # as much as prometheus_client begins with
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
    if (problem := app.state.service.traffic.problem) is not None:
        raise DataError(problem)
    log_to_standard_error()
    if workers == 1:
        freeze_objects()
        serve(lambda: app, settings, [listener])
        return
    content = model.read_bytes()
    check_signature(model, content, model_key())  # again: the file may have been replaced since the detector was loaded
    with tempfile.TemporaryDirectory(prefix="besnn-serve-", ignore_cleanup_errors=True) as folder:
        shared = settings.model_copy(update={"drift_state": settings.drift_state or Path(folder) / "drift.sqlite"})
        make_app = WorkerApp(
            model=model,
            sha256=hashlib.sha256(content).hexdigest(),
            settings=shared,
            examples=[example.model_dump() for example in examples],
            threads=max(1, (os.cpu_count() or 1) // workers),
            device=str(detector.device),
            metrics=Path(folder),
        )
        Supervisor(make_app, listener, workers).run()


class Supervisor:
    """Keeps a number of worker processes running, all of which accept connections from one socket."""

    def __init__(self, make_app: "WorkerApp", listener: socket.socket, workers: int) -> None:
        self._make_app, self._listener, self._count = make_app, listener, workers
        self._workers: list[SpawnProcess] = []

    def run(self) -> None:
        """Replace workers that end, until this process is told to stop; raise a DataError if a worker cannot start."""
        told, tell = socket.socketpair()
        with told, tell:
            earlier = [(each, signal.signal(each, lambda *_: tell.send(b"."))) for each in (signal.SIGINT, signal.SIGTERM)]
            try:
                self._workers = [self._start() for _ in range(self._count)]
                while not self._failed() and not self._is_told(told):
                    self._workers = [each if each.exitcode is None else self._start() for each in self._workers]
            finally:
                self._stop()
                for each, handler in earlier:
                    signal.signal(each, handler)
        if self._failed():
            raise DataError("a worker could not start (see the log), so all were stopped: start the service again")

    def _is_told(self, told: socket.socket) -> bool:
        """Wait for a signal or the end of a worker; return whether it was a signal."""
        return told in multiprocessing.connection.wait([told, *(each.sentinel for each in self._workers)])

    def _failed(self) -> bool:
        return any(each.exitcode == STARTUP_FAILURE for each in self._workers)

    def _start(self) -> SpawnProcess:
        worker = multiprocessing.get_context("spawn").Process(target=_work, args=(self._make_app, self._listener))
        worker.start()
        return worker

    def _stop(self) -> None:
        self._listener.close()  # so that nobody can connect once the workers have closed theirs
        for worker in self._workers:
            worker.terminate()
        until = time.monotonic() + _stopping_seconds(self._make_app.settings) + _KILL_SECONDS
        for worker in self._workers:
            worker.join(max(0.0, until - time.monotonic()))
            worker.kill()
            worker.join()


def _work(make_app: "WorkerApp", listener: socket.socket) -> None:
    serve(make_app, make_app.settings, [listener])


def serve(make_app: "Callable[[], FastAPI]", settings: Settings, listeners: list[socket.socket]) -> None:
    """Answer requests in this process until it is told to stop."""
    protocol: Any = partial(Connection, seconds=settings.deadline_seconds, most=_most_connections(settings))
    config = uvicorn.Config(
        make_app,
        factory=True,
        log_config=None,
        access_log=False,
        server_header=False,
        http=protocol,
        ws="none",
        timeout_graceful_shutdown=_stopping_seconds(settings),
    )
    Server(config).run(listeners)


def _stopping_seconds(settings: Settings) -> int:
    """Return how long a stopping service waits for its last answers."""
    return max(1, round(settings.deadline_seconds))


def _most_connections(settings: Settings) -> int:
    if sys.platform == "win32":
        return settings.max_connections
    import resource

    return max(1, min(settings.max_connections, resource.getrlimit(resource.RLIMIT_NOFILE)[0] - _SPARE_DESCRIPTORS))


@dataclass(frozen=True)
class WorkerApp:
    """Makes the service in a worker process, around the worker's own copy of the model."""

    model: Path
    sha256: str  # so that a worker that replaces another has the same model as the rest
    settings: Settings
    examples: list[dict[str, Any]]  # as plain values: their class is slow to import
    threads: int
    device: str
    metrics: Path | None = None  # the folder through which workers share their counts

    def __call__(self) -> "FastAPI":
        """Return the service, or end the process if the file no longer holds the same model."""
        unshared = None if self.metrics is None else share_metrics(self.metrics)
        from besnn.serve.telemetry import log_to_standard_error

        log_to_standard_error()
        if unshared is not None:
            _LOG.error("metrics of this worker alone", extra={"fields": {"reason": unshared}})
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


def share_metrics(folder: Path) -> str | None:
    """Keep this process's counts in files that other workers read; must run before prometheus_client is imported.

    Returns why that cannot be. The files are filled first, because prometheus_client maps them into memory: on a full disk, the
    first write to a part that is not there yet would kill the process.
    """
    files = [folder / f"{kind}_{os.getpid()}.db" for kind in ("counter", "histogram")]
    try:
        for file in files:
            file.write_bytes(bytes(_METRICS_BYTES))
    except OSError as error:
        for file in files:
            file.unlink(missing_ok=True)
        return error.strerror or "unknown"
    os.environ[_SHARED_METRICS] = str(folder)
    return None


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
