"""Running the service: its socket, its worker processes, its logs."""

import os
import socket
import tempfile
from collections.abc import Sequence
from pathlib import Path

import uvicorn
from fastapi import FastAPI
from uvicorn.supervisors import Multiprocess

from besnn.detector import Detector
from besnn.errors import DataError
from besnn.serve.app import create_app
from besnn.serve.examples import Example
from besnn.serve.heads import LimitedHeads
from besnn.serve.logs import log_to_standard_error
from besnn.serve.process import exempt_from_collection
from besnn.serve.settings import Settings
from besnn.serve.telemetry import MULTIPROCESS_FOLDER
from besnn.serve.worker import CANNOT_START, WorkerApp
from besnn.storage.model_file import read_header

_GRACE_SECONDS = 5  # how much longer than the deadline a stopping service waits for its last answers
_SILENT_SECONDS = 60  # how long a worker may fail to answer its supervisor before it is replaced


def serve(
    detector: Detector,
    model: Path,
    settings: Settings,
    examples: Sequence[Example],
    listener: socket.socket,
    workers: int = 1,
) -> None:
    """Answers requests until the process is told to stop, then finishes those that it has taken.

    Args:
        detector: calibrated, as the file holds it.
        model: the file, from which each of several workers loads a detector of its own.
        settings: of the service.
        examples: inputs for people to try.
        listener: where requests arrive; see `listen`.
        workers: processes; of several, one that dies is replaced.

    Raises:
        DataError: a worker was to be replaced, and the file is gone or holds another model; the other workers have stopped
            in good order, for two models behind one address would be worse than none.
    """
    app = create_app(detector, settings, examples)  # whatever does not fit shows here, before any process is started
    log_to_standard_error()
    if workers == 1:
        exempt_from_collection()
        uvicorn.Server(_config(app, settings)).run([listener])
        return
    with tempfile.TemporaryDirectory(prefix="besnn-serve-") as folder:
        os.environ[MULTIPROCESS_FOLDER] = folder
        values = settings.model_dump()
        values["token"] = settings.token and settings.token.get_secret_value()
        values["drift_state"] = settings.drift_state or Path(folder) / "drift.sqlite"  # all workers' inputs are one stream
        threads = max(1, (os.cpu_count() or 1) // workers)
        plain = [example.model_dump() for example in examples]
        make_app = WorkerApp(model, read_header(model)["sha256"], values, plain, threads, str(detector.device))
        supervisor = Multiprocess(_config(make_app, settings, workers), [listener])
        try:
            supervisor.run()
        finally:
            del os.environ[MULTIPROCESS_FOLDER]  # it goes with the folder
    if any(worker.exitcode == CANNOT_START for worker in supervisor.processes):
        raise DataError("a worker could not start (the log says why), so all were stopped: start the service again")


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens on an address; port 0 takes any free one.

    >>> with listen("127.0.0.1", 0) as listener:
    ...     url_of(listener).startswith("http://127.0.0.1:")
    True
    """
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=2048)
    except socket.gaierror as error:
        raise DataError(f"--host {host} cannot be found ({error.strerror}): give a name or address of this machine") from None
    except OSError as error:
        reason = os.strerror(error.errno or 0)  # its own text repeats the address
        raise DataError(f"cannot listen on {host} port {port} ({reason}): choose another --host or --port") from None


def url_of(listener: socket.socket) -> str:
    """The address of the page."""
    host, port, *_ = listener.getsockname()
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def _config(app: object, settings: Settings, workers: int = 1) -> uvicorn.Config:
    return uvicorn.Config(
        app,  # type: ignore[arg-type]  # an application, or what makes one
        factory=not isinstance(app, FastAPI),
        workers=workers,
        log_config=None,
        access_log=False,
        server_header=False,
        http=LimitedHeads,
        ws="none",
        timeout_graceful_shutdown=int(settings.deadline_seconds) + _GRACE_SECONDS,
        timeout_worker_healthcheck=_SILENT_SECONDS,
    )
