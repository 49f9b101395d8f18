"""Running the service: stopping, restarting and losing a worker; addresses."""

import contextlib
import gc
import hashlib
import http.client
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
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
from besnn.serve.server import Supervisor, WorkerApp, freeze_objects, listen, run, url_of

PATIENCE = 120  # seconds; a loaded machine may need long to start a process
TOKEN = "correct-horse-battery-staple"


def scores_in(answer: IO[bytes]) -> list[float]:
    return [row["score"] for row in json.load(answer)["predictions"]]


def ask(url: str, body: bytes) -> list[float]:
    """The scores of some rows, over a new connection, which any worker may accept."""
    request = urllib.request.Request(f"{url}/v1/predict", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        return scores_in(answer)


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
def test_a_killed_worker_is_replaced_and_no_answer_is_wrong(model_file: Path, moons_detector: Detector, served):
    points = two_moons(400, seed=11).inputs.reshape(100, 4, 2)
    expected = moons_detector.predict(points.reshape(-1, 2)).score.reshape(100, 4)
    stop = threading.Event()
    answers, lost = [], []

    with served(str(model_file), "--workers", "2") as service:
        assert eventually(lambda: is_up(service.url))

        def workers() -> set[int]:
            return workers_of(service.process.pid)

        def client(number: int) -> None:
            turn = number
            while not stop.is_set():
                turn = (turn + 7) % 100
                try:
                    answers.append(np.allclose(ask(service.url, as_json(points[turn])), expected[turn], rtol=1e-5, atol=1e-6))
                except (OSError, http.client.HTTPException) as error:
                    lost.append(error)
                time.sleep(0.05)  # leaves a single core some time for the new worker

        assert eventually(lambda: len(workers()) == 2)
        with ThreadPoolExecutor(4) as clients:
            try:
                for number in range(4):
                    clients.submit(client, number)
                assert eventually(lambda: len(answers) > 20)
                before = workers()
                os.kill(min(before), signal.SIGKILL)
                at_kill = len(answers)
                killed_at = time.monotonic()
                assert eventually(lambda: len(workers() - before) == 1)
                assert time.monotonic() - killed_at < 10  # and not the minute that a silent worker is given
                assert eventually(lambda: len(workers()) == 2 and workers() != before)
                count = len(answers)
                assert eventually(lambda: len(answers) > count + 20)
            finally:
                stop.set()
        assert all(answers)
        assert len(lost) <= 4  # those that the victim had in hand, one a client at most

        def steps() -> int:
            return httpx.get(f"{service.url}/v1/drift").json()["steps"]

        # Both workers feed one stream, each once a second; only what the victim had not yet handed on stays away from it.
        by_living = len(answers) - at_kill - 4  # the victim's last answers, one a client at most, may be counted after the kill
        assert eventually(lambda: steps() >= 4 * by_living)
        assert steps() <= 4 * (len(answers) + len(lost))
        metrics = httpx.get(f"{service.url}/metrics").text
        service.process.terminate()
        assert service.process.wait(PATIENCE) == 0

    posts = 'besnn_requests_total{method="POST"'
    total = sum(float(line.split()[-1]) for line in metrics.splitlines() if line.startswith(posts))
    # The dead worker's counts are included, but for answers that it had sent and not yet counted, one a client at most.
    assert len(answers) - 4 <= total <= len(answers) + len(lost)


@pytest.mark.slow
def test_stopping_two_workers_under_load_loses_nothing(model_file: Path, served):
    answered, refused, lost = [], [], []
    body, told = as_json(np.zeros((1, 2))), threading.Event()

    def client(url: str) -> None:
        """Asks over one connection after the other, several times over each, until the service refuses to connect."""
        host, port = url.removeprefix("http://").split(":")
        while True:
            connection = http.client.HTTPConnection(host, int(port), timeout=30)
            try:
                connection.connect()
            except ConnectionRefusedError:
                refused.append(told.is_set())
                return
            try:
                is_open = True
                while is_open:
                    connection.request("POST", "/v1/predict", body, {"Content-Type": "application/json"})
                    answer = connection.getresponse()
                    scores_in(answer)
                    answered.append(answer.status)
                    is_open = answer.getheader("connection") != "close"
            except (OSError, http.client.HTTPException) as error:
                lost.append(error)
                if told.is_set():
                    return
            finally:
                connection.close()

    with served(str(model_file), "--workers", "2") as service:
        assert eventually(lambda: is_up(service.url))
        assert eventually(lambda: len(workers_of(service.process.pid)) == 2)
        with ThreadPoolExecutor(8) as clients:
            for _ in range(8):
                clients.submit(client, service.url)
            assert eventually(lambda: len(answered) > 200)
            told.set()
            service.process.terminate()
        assert service.process.wait(15) == 0
    assert set(answered) == {200}
    assert lost == []
    assert refused == [True] * 8


@pytest.mark.slow
def test_workers_without_room_for_metrics_serve_all_the_same(model_file: Path, tmp_path: Path):
    make = WorkerApp(model_file, sha256_of(model_file), Settings(), [], 1, "cpu", metrics=tmp_path)
    code = """
import multiprocessing.reduction, resource, signal, sys, warnings
make = multiprocessing.reduction.ForkingPickler.loads(bytes.fromhex(sys.argv[1]))
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))  # no file may grow, as on a full disk
from starlette.testclient import TestClient
with TestClient(make()) as client:
    client.post("/v1/predict", json={"inputs": [[0, 0]]})
    print(client.get("/metrics").text)
"""
    sent = bytes(ForkingPickler.dumps(make)).hex()
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code, sent], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert 'besnn_inputs_total{is_ood="false"}' in done.stdout
    assert "metrics of this worker alone" in done.stderr


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
async def test_a_worker_makes_its_own_service(model_file: Path, capsys: pytest.CaptureFixture[str]):
    example = {"kind": "known", "input": [1.0, 2.0]}
    settings = Settings.model_validate({"model_name": "own", "token": TOKEN})
    sent = ForkingPickler.dumps(WorkerApp(model_file, sha256_of(model_file), settings, [example], 2, "cpu"))
    transport, headers = httpx.ASGITransport(ForkingPickler.loads(sent)()), {"Authorization": f"Bearer {TOKEN}"}
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost", headers=headers) as client:
        assert (await client.get("/v1/examples")).json() == {"examples": [example]}
        assert (await client.get("/v2/models/own")).json()["name"] == "own"
        assert (await client.get("/v1/model", headers={"Authorization": "Bearer other"})).status_code == 401
    (line,) = [json.loads(text) for text in capsys.readouterr().err.splitlines() if '"/v1/examples"' in text]
    assert line["status"] == 200


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

    def start_late(*arguments) -> Supervisor:
        path.unlink()
        return Supervisor(*arguments)

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


def is_collected(thing: object) -> bool:
    return any(each is thing for each in gc.get_objects())


def test_freezing_exempts_present_objects_from_collection_but_not_new_ones():
    old: list[object] = []
    assert is_collected(old)
    try:
        freeze_objects()
        new: list[object] = []
        assert not is_collected(old)
        assert is_collected(new)
    finally:
        gc.unfreeze()
