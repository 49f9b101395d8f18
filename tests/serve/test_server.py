"""Running the service: stopping, restarting and losing a worker; addresses."""

import contextlib
import gc
import hashlib
import http.client
import itertools
import json
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import IO

import httpx
import numpy as np
import psutil
import pytest
import torch
from uvicorn.config import STARTUP_FAILURE

from besnn import Detector
from besnn.data import two_moons
from besnn.errors import DataError
from besnn.serve import Settings, server
from besnn.serve.drift import Traffic
from besnn.serve.server import Supervisor, WorkerApp, listen, run, share_metrics, url_of

PATIENCE = 120  # seconds; a loaded machine may need long to start a process
TOKEN = "correct-horse-battery-staple"


def scores_in(answer: IO[bytes]) -> list[float]:
    return [row["score"] for row in json.load(answer)["predictions"]]


def as_json(rows: np.ndarray) -> bytes:
    return json.dumps({"inputs": rows.tolist()}).encode()


def eventually(condition: Callable[[], bool]) -> bool:
    until = time.monotonic() + PATIENCE
    while not (met := condition()) and time.monotonic() < until:
        time.sleep(0.1)
    return met


def is_up(url: str) -> bool:
    try:
        return httpx.get(f"{url}/v2/health/ready", timeout=5).status_code == 200
    except httpx.HTTPError:
        return False


def begin(url: str, body: bytes) -> socket.socket:
    """Sends the head of a request; the service has accepted it once it asks for the body."""
    host, port = url.removeprefix("http://").split(":")
    connection = socket.create_connection((host, int(port)), timeout=30)
    head = f"POST /v1/predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    connection.sendall(f"{head}\r\nExpect: 100-continue\r\n\r\n".encode())
    assert connection.recv(100).startswith(b"HTTP/1.1 100 ")
    return connection


def finish(connection: socket.socket, body: bytes) -> list[float]:
    with connection, http.client.HTTPResponse(connection) as answer:
        connection.sendall(body)
        answer.begin()
        assert answer.status == 200
        return scores_in(answer)


def test_stopping_answers_accepted_requests_and_keeps_the_stream(
    model_file: Path, moons_detector: Detector, tmp_path: Path, served
):
    state = tmp_path / "drift.sqlite"
    points = two_moons(40, seed=12).inputs.reshape(8, 5, 2)
    with served(str(model_file), "--drift-state", str(state)) as service:
        assert eventually(lambda: is_up(service.url))
        accepted = [begin(service.url, as_json(rows)) for rows in points]
        service.process.terminate()
        assert eventually(lambda: not is_up(service.url))  # nothing new is accepted
        answers = [finish(connection, as_json(rows)) for connection, rows in zip(accepted, points, strict=True)]
        assert service.process.wait(30) == 0
        service.drained()
        lines = [json.loads(line) for line in service.lines]
    np.testing.assert_allclose(np.ravel(answers), moons_detector.predict(points.reshape(-1, 2)).score, rtol=1e-5)
    assert [line["status"] for line in lines if line.get("route") == "/v1/predict"] == [200] * 8
    assert moons_detector.threshold is not None
    assert Traffic(moons_detector.threshold, Settings(drift_state=state)).report().steps == points.size // 2


def workers_of(supervisor: int) -> set[int]:
    """The live worker processes, by their ids."""
    found = set()
    for child in psutil.Process(supervisor).children():
        with contextlib.suppress(psutil.Error):  # it may die while it is looked at
            if any("spawn_main" in argument for argument in child.cmdline()):
                found.add(child.pid)
    return found


@pytest.mark.slow
def test_a_killed_worker_is_replaced_and_stopping_two_under_load_loses_nothing(
    model_file: Path, moons_detector: Detector, served
):
    points = two_moons(40, seed=11).inputs.reshape(10, 4, 2)
    expected = moons_detector.predict(points.reshape(-1, 2)).score.reshape(10, 4)
    right, lost, refused, told = [], [], [], threading.Event()

    def client(url: str, number: int) -> None:
        """Asks over one connection after the other, several times over each, until the service refuses to connect."""
        host, port = url.removeprefix("http://").split(":")
        for turn in itertools.count(number):
            connection = http.client.HTTPConnection(host, int(port), timeout=30)
            try:
                connection.connect()
            except ConnectionRefusedError:
                refused.append(told.is_set())
                return
            with contextlib.closing(connection):
                try:
                    for _ in range(10):
                        connection.request(
                            "POST", "/v1/predict", as_json(points[turn % 10]), {"Content-Type": "application/json"}
                        )
                        answer = connection.getresponse()
                        right.append(np.allclose(scores_in(answer), expected[turn % 10], rtol=1e-5, atol=1e-6))
                        if answer.getheader("connection") == "close":
                            break
                        time.sleep(0.02)  # leaves a single core some time for the new worker
                except (OSError, http.client.HTTPException) as error:
                    lost.append(error)

    with served(str(model_file), "--workers", "2") as service, ThreadPoolExecutor(4) as clients:

        def workers() -> set[int]:
            return workers_of(service.process.pid)

        assert eventually(lambda: is_up(service.url) and len(workers()) == 2)
        for number in range(4):
            clients.submit(client, service.url, number)
        assert eventually(lambda: len(right) > 20)
        before = workers()
        os.kill(min(before), signal.SIGKILL)
        at_kill, killed_at = len(right), time.monotonic()
        assert eventually(lambda: len(workers() - before) == 1)
        assert time.monotonic() - killed_at < 10  # and not the minute that a silent worker is given
        new = (workers() - before).pop()
        assert eventually(lambda: any(each.status == "ESTABLISHED" for each in psutil.Process(new).net_connections()))
        answered_by_living = len(right) - at_kill - 4  # the victim's last answers may be counted after the kill

        # Both workers feed one stream, each once a second; only what the victim had not yet handed on stays away from it.
        assert eventually(lambda: httpx.get(f"{service.url}/v1/drift").json()["steps"] >= 4 * answered_by_living)
        lost_by_kill, counted = len(lost), len(right)
        metrics = httpx.get(f"{service.url}/metrics").text
        told.set()
        service.process.terminate()
        assert service.process.wait(15) == 0
    assert lost_by_kill <= 4  # what the victim had in hand, one request per client at most
    assert len(lost) == lost_by_kill
    assert all(right)
    assert refused == [True] * 4
    posts = 'besnn_requests_total{method="POST"'
    total = sum(float(line.split()[-1]) for line in metrics.splitlines() if line.startswith(posts))
    # The dead worker's counts are included, but for answers that it had sent and not yet counted.
    assert counted - 4 <= total <= len(right) + lost_by_kill


def test_a_worker_without_room_for_shared_metrics_keeps_its_own(tmp_path: Path):
    resource = pytest.importorskip("resource")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))  # no file may grow, as on a full disk
    try:
        reason = share_metrics(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert reason == "File too large"
    assert list(tmp_path.iterdir()) == []
    assert "PROMETHEUS_MULTIPROC_DIR" not in os.environ


def test_a_port_in_use_is_named():
    with listen("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(DataError, match=rf"^cannot listen on 127.0.0.1 port {port} \(Address already in use\): "):
            listen("127.0.0.1", port)


def test_a_host_that_does_not_exist_is_named():
    with pytest.raises(DataError, match=r"no-such-host\.invalid"):
        listen("no-such-host.invalid", 8000)


@pytest.mark.skipif(not socket.has_ipv6, reason="needs IPv6")
def test_an_ipv6_address_is_written_in_brackets():
    try:
        listener = listen("::1", 0)
    except DataError:
        pytest.skip("this machine has no IPv6 loopback address")
    with listener:
        assert url_of(listener) == f"http://[::1]:{listener.getsockname()[1]}"


def sha256_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture
def kept_process() -> Iterator[None]:
    """Restores logging, threads and garbage collection."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)
    gc.unfreeze()
    logging.captureWarnings(False)
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.mark.anyio
@pytest.mark.usefixtures("kept_process")
async def test_a_worker_makes_its_own_service(model_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    example = {"kind": "known", "input": [1.0, 2.0]}
    settings = Settings.model_validate({"model_name": "own", "token": TOKEN})
    make = WorkerApp(model_file, sha256_of(model_file), settings, [example], 2, "cpu", metrics=tmp_path / "missing")
    sent = ForkingPickler.dumps(make)
    transport, headers = httpx.ASGITransport(ForkingPickler.loads(sent)()), {"Authorization": f"Bearer {TOKEN}"}
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost", headers=headers) as client:
        assert (await client.get("/v1/examples")).json() == {"examples": [example]}
        assert (await client.get("/v2/models/own")).json()["name"] == "own"
        assert (await client.get("/v1/model", headers={"Authorization": "Bearer other"})).status_code == 401
        assert 'route="/v1/examples",status="200"} 1.0' in (await client.get("/metrics")).text
    first, *lines = [json.loads(text) for text in capsys.readouterr().err.splitlines()]
    assert (first["event"], first["reason"]) == ("metrics of this worker alone", "No such file or directory")
    assert [line["status"] for line in lines if line.get("route") == "/v1/examples"] == [200]


@pytest.mark.usefixtures("kept_process")
def test_a_worker_refuses_another_model_than_the_others_have(
    model_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    path, damaged = tmp_path / "served.safetensors", tmp_path / "damaged.safetensors"
    whole = model_file.read_bytes()
    damaged.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))  # so that it no longer matches the digest in its header
    for found, expected, reason in (
        (None, model_file, f"{path} (No such file or directory)"),
        (b"another", model_file, f"{path} is not the file that the service was started with"),
        (damaged.read_bytes(), damaged, "the model file was altered"),
    ):
        if found is not None:
            path.write_bytes(found)
        with pytest.raises(SystemExit) as refused:
            WorkerApp(path, sha256_of(expected), Settings(), [], 1, "cpu")()
        (line,) = [json.loads(text) for text in capsys.readouterr().err.splitlines()]
        assert refused.value.code == STARTUP_FAILURE  # tells the supervisor not to try again
        assert (line["level"], line["event"]) == ("error", "model not loaded")
        assert reason in line["reason"]


@pytest.mark.usefixtures("kept_process")
@pytest.mark.skipif(threading.current_thread() is not threading.main_thread(), reason="only the main thread gets signals")
def test_a_service_ends_if_its_workers_cannot_start(
    model_file: Path, moons_detector: Detector, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    path = tmp_path / "served.safetensors"
    path.write_bytes(model_file.read_bytes())

    def start_late(make_app: WorkerApp, listener: socket.socket, count: int) -> Supervisor:
        path.unlink()
        assert count == 2
        return Supervisor(make_app, listener, 1)  # the same with less to start

    monkeypatch.setattr(server, "Supervisor", start_late)
    with listen("127.0.0.1", 0) as listener, pytest.raises(DataError, match="a worker could not start"):
        run(moons_detector, path, Settings(), [], listener, workers=2)
    assert "PROMETHEUS_MULTIPROC_DIR" not in os.environ


@pytest.mark.usefixtures("kept_process")
@pytest.mark.skipif(threading.current_thread() is not threading.main_thread(), reason="only the main thread gets signals")
def test_an_interrupt_ends_the_service_in_good_order(model_file: Path, moons_detector: Detector):
    with listen("127.0.0.1", 0) as listener:
        url = url_of(listener)
        statuses = []

        def interrupt() -> None:
            if eventually(lambda: is_up(url)):
                statuses.append(httpx.get(f"{url}/v1/model").status_code)
                signal.raise_signal(signal.SIGINT)

        client = threading.Thread(target=interrupt)
        client.start()
        with contextlib.suppress(KeyboardInterrupt):  # the event loop mostly passes it on, but may end before it comes to that
            run(moons_detector, model_file, Settings(), [], listener)
        client.join()
    assert statuses == [200]
    assert not is_up(url)
