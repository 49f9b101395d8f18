"""The service with concurrent clients: no answer mixed up, back-pressure, deadlines, limits on bodies."""

import asyncio
import io
import logging
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import httpx
import numpy as np
import pytest
from PIL import Image

from besnn import Detector
from besnn.data import two_moons
from besnn.detector import Predictions
from besnn.serve import Settings, create_app

pytestmark = pytest.mark.anyio
CLIENTS, REQUESTS = 64, 6
JSON = {"Content-Type": "application/json"}


class Slow:
    """A detector that waits before it predicts, until it is let go."""

    def __init__(self, detector: Detector) -> None:
        self._detector = detector
        self.go, self.entered = threading.Event(), threading.Event()

    def __getattr__(self, name: str) -> object:
        return getattr(self._detector, name)

    def predict(self, inputs: np.ndarray) -> Predictions:
        self.entered.set()
        self.go.wait(10)
        return self._detector.predict(inputs)


@asynccontextmanager
async def client(detector: object, **settings: object) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the service around a detector."""
    app = create_app(detector, Settings.model_validate(settings))  # type: ignore[arg-type]
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost", timeout=30) as http,
    ):
        yield http


def saved(image: Image.Image) -> bytes:
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def outcome(response: httpx.Response) -> tuple[int, str]:
    return response.status_code, response.json()["code"]


async def test_64_clients_each_get_the_answer_to_their_own_inputs(moons_detector: Detector):
    points = two_moons(CLIENTS * REQUESTS * 4, seed=9).inputs.reshape(CLIENTS, REQUESTS, 4, 2)
    expected = moons_detector.predict(points.reshape(-1, 2)).score.reshape(CLIENTS, REQUESTS, 4)
    assert len(np.unique(expected)) > 0.9 * expected.size  # so that a mix-up would show

    async def scores(http: httpx.AsyncClient, batches: np.ndarray) -> list[list[float]]:
        answers = [(await http.post("/v1/predict", json={"inputs": batch.tolist()})).json() for batch in batches]
        return [[row["score"] for row in answer["predictions"]] for answer in answers]

    async with client(moons_detector) as http:
        found = np.array(await asyncio.gather(*(scores(http, batches) for batches in points)))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


async def test_a_busy_service_answers_429_and_says_when_to_return(moons_detector: Detector):
    slow = Slow(moons_detector)
    async with client(slow, max_waiting_rows=4, max_batch_rows=2) as http:
        body = {"inputs": [[0.0, 0.0], [1.0, 1.0]]}
        asked = [asyncio.create_task(http.post("/v1/predict", json=body))]
        while not slow.entered.is_set():
            await asyncio.sleep(0.01)
        asked += [asyncio.create_task(http.post("/v1/predict", json=body)) for _ in range(7)]
        while sum(task.done() for task in asked) < 5:  # one is being scored, two wait
            await asyncio.sleep(0.01)
        slow.go.set()
        responses = await asyncio.gather(*asked)
    assert sorted(response.status_code for response in responses) == [200] * 3 + [429] * 5
    refused = [response for response in responses if response.status_code == 429]
    assert {response.json()["code"] for response in refused} == {"busy"}
    assert all(int(response.headers["Retry-After"]) >= 1 for response in refused)


async def test_a_late_answer_is_a_504(moons_detector: Detector):
    slow = Slow(moons_detector)
    async with client(slow, deadline_seconds=0.1) as http:
        began = time.monotonic()
        response = await http.post("/v1/predict", json={"inputs": [[0.0, 0.0]]})
        took = time.monotonic() - began
        slow.go.set()
    assert outcome(response) == (504, "deadline-exceeded")
    assert took < 5


async def test_images_are_not_decoded_after_the_deadline(digits_detector: Detector):
    large, small = (saved(Image.new("L", (side, side))) for side in (4000, 8))
    async with client(digits_detector, deadline_seconds=3, max_request_pixels=10**10) as http:
        # as many as there are processes, with work for ten seconds each
        late = [http.post("/v1/predict", files=[("images", large)] * 100) for _ in range(2)]
        responses = await asyncio.gather(*late, http.post("/v1/predict", json={"inputs": [np.zeros((1, 8, 8)).tolist()]}))
        assert [response.status_code for response in responses] == [504, 504, 200]
        until = time.monotonic() + 60  # a loaded machine may need long to start other processes
        while (await http.post("/v1/predict", files=[("images", small)])).status_code != 200:
            assert time.monotonic() < until
            await asyncio.sleep(1)


async def test_all_requests_share_the_memory_for_decoded_images(digits_detector: Detector):
    image = saved(Image.new("L", (8, 8)))
    async with client(digits_detector, max_decoded_bytes=3 * 64, max_rows=4) as http:
        assert outcome(await http.post("/v1/predict", files=[("images", image)] * 5)) == (422, "input-invalid")
        assert outcome(await http.post("/v1/predict", files=[("images", image)] * 4)) == (413, "images-too-large")
        answers = [http.post("/v1/predict", files=[("images", image)] * 3) for _ in range(4)]
        statuses = sorted(answer.status_code for answer in await asyncio.gather(*answers))
        assert statuses[0] == 200
        assert set(statuses) <= {200, 429}
        assert (await http.post("/v1/predict", files=[("images", image)] * 3)).status_code == 200


class Broken(Slow):
    """A detector that fails as long as it is broken."""

    is_broken = True

    def predict(self, inputs: np.ndarray) -> Predictions:
        if self.is_broken:
            raise RuntimeError("a device error, for instance")
        return self._detector.predict(inputs)


async def test_readiness_follows_the_model(moons_detector: Detector):
    broken = Broken(moons_detector)
    async with client(broken) as http:
        assert (await http.get("/v2/health/ready")).status_code == 200
        assert (await http.post("/v1/predict", json={"inputs": [[0, 0]]})).status_code == 500
        for path in ("/v2/health/ready", "/v2/models/model/ready"):
            assert outcome(await http.get(path)) == (503, "not-ready")
        assert (await http.get("/v2/health/live")).status_code == 200
        broken.is_broken = False
        assert (await http.get("/v2/health/ready")).status_code == 200


async def test_a_model_that_hangs_is_not_ready(moons_detector: Detector):
    slow = Slow(moons_detector)
    async with client(slow, deadline_seconds=0.2) as http:
        assert (await http.post("/v1/predict", json={"inputs": [[0, 0]]})).status_code == 504
        await anyio.sleep(0.3)  # on a busy machine the model begins later than the request
        answer = await http.get("/v2/health/ready")
        assert outcome(answer) == (503, "not-ready")
        assert "does not answer" in answer.json()["detail"]
        slow.go.set()


async def test_a_lost_drift_state_shows_but_predictions_go_on(moons_detector: Detector, tmp_path: Path):
    folder = tmp_path / "disk"
    folder.mkdir()
    async with client(moons_detector, drift_state=folder / "drift.sqlite") as http:
        folder.rename(tmp_path / "away")
        assert (await http.post("/v1/predict", json={"inputs": [[0, 0]]})).status_code == 200
        drift = await http.get("/v1/drift")
        assert drift.status_code == 200
        assert "cannot read or write drift state" in drift.json()["problem"]
        assert "besnn_drift_stale 1.0" in (await http.get("/metrics")).text
        ready = await http.get("/v2/health/ready")
        assert outcome(ready) == (503, "not-ready")
        assert str(tmp_path) not in ready.text  # anyone may ask
        (tmp_path / "away").rename(folder)
        assert (await http.get("/v2/health/ready")).status_code == 200
        assert (await http.get("/v1/drift")).json()["steps"] == 1


async def test_too_many_bytes_at_once_are_refused(moons_detector: Detector):
    arrived = asyncio.Event()

    async def slow_body() -> AsyncIterator[bytes]:
        yield b" " * 900
        arrived.set()
        await asyncio.sleep(0.3)
        yield b'{"inputs": [[0, 0]]}'

    async with client(moons_detector, max_bytes_in_flight=1000) as http:
        first = asyncio.create_task(http.post("/v1/predict", content=slow_body(), headers=JSON))
        await arrived.wait()
        assert outcome(await http.post("/v1/predict", content=b" " * 200, headers=JSON)) == (429, "busy")
        assert (await first).status_code == 200
        assert (await http.post("/v1/predict", json={"inputs": [[0, 0]]})).status_code == 200  # there is room again


async def test_a_body_that_arrives_too_slowly_is_a_408(moons_detector: Detector):
    async def slow_body() -> AsyncIterator[bytes]:
        yield b'{"inputs": '
        await asyncio.sleep(5)
        yield b"[[0, 0]]}"

    async with client(moons_detector, deadline_seconds=0.1) as http:
        response = await http.post("/v1/predict", content=slow_body(), headers=JSON)
    assert outcome(response) == (408, "body-timeout")


async def test_a_client_that_hangs_up_is_no_failure_of_the_service(moons_detector: Detector, caplog: pytest.LogCaptureFixture):
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/v1/predict",
        "query_string": b"",
        "headers": [(b"content-type", b"application/json")],
    }
    messages = iter([{"type": "http.request", "body": b"{", "more_body": True}, {"type": "http.disconnect"}])
    statuses = []

    async def receive() -> dict:
        return next(messages)

    async def send(message: dict) -> None:
        statuses.append(message.get("status"))

    with caplog.at_level(logging.INFO):
        await create_app(moons_detector)(scope, receive, send)
    assert statuses[0] == 408
    assert "unexpected" not in caplog.messages


@pytest.mark.parametrize("declared", [{"Content-Length": "10000000"}, {}], ids=["declared", "chunked"])
async def test_a_long_body_is_refused_before_it_is_read_completely(moons_detector: Detector, declared: dict[str, str]):
    sent = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal sent
        while sent < 10_000_000:
            sent += 1000
            yield b" " * 1000

    async with client(moons_detector, max_body_bytes=10_000) as http:
        response = await http.post("/v1/predict", content=endless(), headers=JSON | declared)
    assert outcome(response) == (413, "body-too-large")
    assert sent <= 11_000
