"""Two small detectors, the service around them, and the service as a process of its own."""

import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import httpx
import psutil
import pytest
import uvicorn

from besnn import Detector, fit_detector
from besnn.data import Dataset, digits, two_moons
from besnn.serve import Settings, create_app
from besnn.serve.examples import Example
from besnn.serve.server import listen, url_of
from besnn.training import load_recipe

QUICK_DIGITS = [
    "training.epochs=3",
    "training.gradient_every=1000",
    "method.members=2",
    "backbone.hidden=[8, 16]",
    "score.name=nearest-neighbour",
]


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Runs asynchronous tests on asyncio alone."""
    return "asyncio"


@pytest.fixture(scope="session")
def moons_detector() -> Detector:
    return fit_detector(load_recipe("two-moons", ["training.epochs=40"]), two_moons(600)).detector


@pytest.fixture(scope="session")
def digit_data() -> Dataset:
    return digits()


@pytest.fixture(scope="session")
def digits_detector(digit_data: Dataset) -> Detector:
    return fit_detector(load_recipe("digits", QUICK_DIGITS), digit_data).detector


@pytest.fixture(scope="session")
def model_file(moons_detector: Detector, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "moons.safetensors"
    moons_detector.save(path)
    return path


Start = Callable[..., AbstractContextManager[httpx.Client]]


@pytest.fixture(scope="session")
def start() -> Start:
    """Runs the service around a detector on a thread of this process, with settings by name; yields a client of it."""

    @contextmanager
    def started(detector: Detector, examples: Sequence[Example] = (), **settings: object) -> Iterator[httpx.Client]:
        app = create_app(detector, Settings.model_validate(settings), examples)
        server = uvicorn.Server(uvicorn.Config(app, log_config=None, access_log=False, ws="none"))
        with listen("127.0.0.1", 0) as listener:
            thread = threading.Thread(target=server.run, args=([listener],))
            thread.start()
            try:
                with httpx.Client(base_url=url_of(listener), timeout=30) as client:
                    yield client
            finally:
                server.should_exit = True
                thread.join()

    return started


@pytest.fixture(scope="session")
def moons_client(moons_detector: Detector, start: Start) -> Iterator[httpx.Client]:
    """For tests that do not depend on earlier requests."""
    with start(moons_detector) as client:
        yield client


@pytest.fixture(scope="session")
def digits_client(digits_detector: Detector, start: Start) -> Iterator[httpx.Client]:
    """For tests that do not depend on earlier requests."""
    with start(digits_detector) as client:
        yield client


class Served:
    """A service that runs as a process of its own: its URL, and the lines that it has logged so far."""

    def __init__(self, *arguments: str) -> None:
        command = [sys.executable, "-c", "from besnn.cli import main; main()", "serve", *arguments, "--port", "0"]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        self.lines: list[str] = []
        assert self.process.stderr is not None
        announcement = self.process.stderr.readline()
        found = re.search(r"http://\S+", announcement)
        assert found, announcement
        self.url = found.group()
        self._drain = threading.Thread(target=lambda: self.lines.extend(self.process.stderr or ()), daemon=True)
        self._drain.start()

    def drained(self) -> None:
        """Waits until all that it logged is in `lines`."""
        self._drain.join(10)


@pytest.fixture(scope="session")
def served() -> Callable[..., AbstractContextManager[Served]]:
    """Starts `besnn serve` with arguments, on a free port; stops it at the end."""

    @contextmanager
    def running(*arguments: str) -> Iterator[Served]:
        service = Served(*arguments)
        try:
            yield service
        finally:
            if service.process.poll() is None:
                for member in (*psutil.Process(service.process.pid).children(recursive=True), service.process):
                    member.kill()
            service.process.wait()
            service.drained()
            assert service.process.stderr is not None
            service.process.stderr.close()

    return running
