"""The service under concurrent clients: no answer mixed up, back-pressure, deadlines."""

import asyncio
import io
import threading
import time

import httpx
import numpy as np
import pytest
from PIL import Image

from besnn import Detector
from besnn.data import two_moons
from besnn.detector import Predictions
from besnn.serve import Settings, create_app

CLIENTS, REQUESTS = 64, 6


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


def saved(image: Image.Image) -> bytes:
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def transport(app: object) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost", timeout=30)


def test_64_clients_each_get_the_answer_to_their_own_inputs(moons_detector: Detector):
    app = create_app(moons_detector)
    points = two_moons(CLIENTS * REQUESTS * 4, seed=9).inputs.reshape(CLIENTS, REQUESTS, 4, 2)
    expected = moons_detector.predict(points.reshape(-1, 2)).score.reshape(CLIENTS, REQUESTS, 4)
    assert len(np.unique(expected)) > 0.9 * expected.size  # so that a mix-up would show

    async def client(http: httpx.AsyncClient, number: int) -> list[list[float]]:
        scores = []
        for batch in points[number]:
            response = await http.post("/v1/predict", json={"inputs": batch.tolist()})
            scores.append([row["score"] for row in response.json()["predictions"]])
        return scores

    async def scenario() -> np.ndarray:
        async with app.router.lifespan_context(app), transport(app) as http:
            return np.array(await asyncio.gather(*(client(http, number) for number in range(CLIENTS))))

    np.testing.assert_allclose(asyncio.run(scenario()), expected, rtol=1e-5, atol=1e-6)


def test_a_busy_service_says_429_and_when_to_return(moons_detector: Detector):
    slow = Slow(moons_detector)
    app = create_app(slow, Settings(max_waiting_rows=4, max_batch_rows=2))  # type: ignore[arg-type]

    async def scenario() -> list[httpx.Response]:
        async with app.router.lifespan_context(app), transport(app) as http:
            body = {"inputs": [[0.0, 0.0], [1.0, 1.0]]}
            asked = [asyncio.create_task(http.post("/v1/predict", json=body))]
            while not slow.entered.is_set():
                await asyncio.sleep(0.01)
            asked += [asyncio.create_task(http.post("/v1/predict", json=body)) for _ in range(7)]
            while sum(task.done() for task in asked) < 5:  # one is being scored, two wait
                await asyncio.sleep(0.01)
            slow.go.set()
            return await asyncio.gather(*asked)

    responses = asyncio.run(scenario())
    assert sorted(response.status_code for response in responses) == [200] * 3 + [429] * 5
    for response in responses:
        if response.status_code == 429:
            assert response.json()["code"] == "busy"
            assert int(response.headers["Retry-After"]) >= 1


def test_a_late_answer_is_a_504(moons_detector: Detector):
    slow = Slow(moons_detector)
    app = create_app(slow, Settings(deadline_seconds=0.1))  # type: ignore[arg-type]

    async def scenario() -> tuple[httpx.Response, float]:
        async with app.router.lifespan_context(app), transport(app) as http:
            began = time.monotonic()
            response = await http.post("/v1/predict", json={"inputs": [[0.0, 0.0]]})
            took = time.monotonic() - began
            slow.go.set()
            return response, took

    response, took = asyncio.run(scenario())
    assert (response.status_code, response.json()["code"]) == (504, "deadline-exceeded")
    assert took < 5


def test_images_that_nobody_waits_for_any_more_are_left_alone(digits_detector: Detector):
    app = create_app(digits_detector, Settings(deadline_seconds=0.5, max_request_pixels=10**10))
    large, small = (saved(Image.new("L", (side, side))) for side in (4000, 8))

    async def scenario() -> list[httpx.Response]:
        async with app.router.lifespan_context(app), transport(app) as http:
            # as many as there are threads, with work for ten seconds each
            late = [http.post("/v1/predict", files=[("images", large)] * 100) for _ in range(2)]
            return [*await asyncio.gather(*late), await http.post("/v1/predict", files=[("images", small)])]

    began = time.monotonic()
    responses = asyncio.run(scenario())
    assert [response.status_code for response in responses] == [504, 504, 200]
    assert time.monotonic() - began < 10  # with the threads at their end


def test_too_many_bytes_at_once_are_refused(moons_detector: Detector):
    app = create_app(moons_detector, Settings(max_bytes_in_flight=1000))
    arrived = asyncio.Event()

    async def slow_body():
        yield b" " * 900
        arrived.set()
        await asyncio.sleep(0.3)
        yield b'{"inputs": [[0, 0]]}'

    async def scenario() -> tuple[httpx.Response, httpx.Response, httpx.Response]:
        headers = {"Content-Type": "application/json"}
        async with app.router.lifespan_context(app), transport(app) as http:
            first = asyncio.create_task(http.post("/v1/predict", content=slow_body(), headers=headers))
            await arrived.wait()
            second = await http.post("/v1/predict", content=b" " * 200, headers=headers)
            return await first, second, await http.post("/v1/predict", json={"inputs": [[0, 0]]})

    first, second, third = asyncio.run(scenario())
    assert (second.status_code, second.json()["code"]) == (429, "busy")
    assert (first.status_code, third.status_code) == (200, 200)  # and once they are gone there is room again


def test_a_body_that_dawdles_is_a_408(moons_detector: Detector):
    app = create_app(moons_detector, Settings(deadline_seconds=0.1))

    async def dawdling():
        yield b'{"inputs": '
        await asyncio.sleep(5)
        yield b"[[0, 0]]}"

    async def scenario() -> httpx.Response:
        async with app.router.lifespan_context(app), transport(app) as http:
            return await http.post("/v1/predict", content=dawdling(), headers={"Content-Type": "application/json"})

    response = asyncio.run(scenario())
    assert (response.status_code, response.json()["code"]) == (408, "body-timeout")


@pytest.mark.parametrize("declared", [True, False])
def test_a_long_body_is_refused_before_it_is_read_whole(moons_detector: Detector, declared: bool):
    app = create_app(moons_detector, Settings(max_body_bytes=10_000))
    sent = 0

    async def endless():
        nonlocal sent
        while sent < 10_000_000:
            sent += 1000
            yield b" " * 1000

    async def scenario() -> httpx.Response:
        headers = {"Content-Type": "application/json"} | ({"Content-Length": "10000000"} if declared else {})
        async with app.router.lifespan_context(app), transport(app) as http:
            return await http.post("/v1/predict", content=endless(), headers=headers)

    response = asyncio.run(scenario())
    assert (response.status_code, response.json()["code"]) == (413, "body-too-large")
    assert sent <= 11_000
