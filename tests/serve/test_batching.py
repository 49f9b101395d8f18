import asyncio
import threading

import numpy as np
import pytest

from besnn.detector import Predictions
from besnn.serve.batching import Batcher
from besnn.serve.problems import Problem


def echo(inputs: np.ndarray) -> Predictions:
    """Predictions whose score is the input itself."""
    n = len(inputs)
    flags, members = np.zeros(n, bool), np.zeros((2, n))
    score = inputs[:, 0].astype(np.float32)
    return Predictions(np.full(n, "a"), flags.astype(int), np.ones((n, 1)), score, score, flags, members.astype(int), members)


class Gate:
    """Scores as `echo` does, but only once it is opened; remembers its batches."""

    def __init__(self) -> None:
        self.opened = threading.Event()
        self.entered = threading.Event()
        self.batches: list[list[float]] = []

    def __call__(self, inputs: np.ndarray) -> Predictions:
        self.entered.set()
        assert self.opened.wait(10)
        self.batches.append(inputs[:, 0].tolist())
        return echo(inputs)

    async def until_entered(self) -> None:
        while not self.entered.is_set():
            await asyncio.sleep(0.001)


def rows(*values: float) -> np.ndarray:
    return np.array(values, dtype=float)[:, None]


def test_what_gathers_while_a_batch_is_scored_makes_up_the_next():
    async def scenario() -> list[list[float]]:
        gate = Gate()
        batcher = Batcher(gate, max_batch_rows=4, max_waiting_rows=100)
        first = asyncio.create_task(batcher.submit(rows(1)))
        await gate.until_entered()
        others = [asyncio.create_task(batcher.submit(rows(*values))) for values in ([2, 3], [4], [5, 6], [7, 8, 9, 10, 11])]
        await asyncio.sleep(0)
        gate.opened.set()
        answers = await asyncio.gather(first, *others)
        assert [answer.score.tolist() for answer in answers] == [[1], [2, 3], [4], [5, 6], [7, 8, 9, 10, 11]]
        await batcher.close()
        return gate.batches

    # A lone request is scored at once, requests stay whole, and only a single one exceeds the limit.
    assert asyncio.run(scenario()) == [[1], [2, 3, 4], [5, 6], [7, 8, 9, 10, 11]]


def test_a_full_queue_refuses_and_says_when_to_return():
    async def scenario() -> None:
        gate = Gate()
        batcher = Batcher(gate, max_batch_rows=1, max_waiting_rows=3)
        first = asyncio.create_task(batcher.submit(rows(1)))
        await gate.until_entered()
        large = asyncio.create_task(batcher.submit(rows(2, 3, 4, 5)))  # nothing waits yet: taken, whatever its size
        await asyncio.sleep(0)
        with pytest.raises(Problem, match="waiting") as refused:
            await batcher.submit(rows(6))
        assert int(refused.value.headers["Retry-After"]) >= 1
        gate.opened.set()
        await asyncio.gather(first, large)
        assert (await batcher.submit(rows(7))).score.tolist() == [7]  # there is room again
        await batcher.close()

    asyncio.run(scenario())


def test_who_stops_waiting_is_not_scored():
    async def scenario() -> list[list[float]]:
        gate = Gate()
        batcher = Batcher(gate, max_batch_rows=8, max_waiting_rows=8)
        first = asyncio.create_task(batcher.submit(rows(1)))
        await gate.until_entered()
        impatient = asyncio.create_task(batcher.submit(rows(2)))
        patient = asyncio.create_task(batcher.submit(rows(3)))
        await asyncio.sleep(0)
        impatient.cancel()
        gate.opened.set()
        await asyncio.gather(first, patient)
        assert impatient.cancelled()
        await batcher.close()
        return gate.batches

    assert asyncio.run(scenario()) == [[1], [3]]


def test_an_input_that_fails_does_not_take_its_neighbours_along():
    def score(inputs: np.ndarray) -> Predictions:
        if (inputs == 13).any():
            raise RuntimeError("thirteen")
        return echo(inputs)

    async def scenario() -> list[object]:
        batcher = Batcher(score, max_batch_rows=8, max_waiting_rows=8)
        requests = [batcher.submit(rows(value)) for value in (1, 2, 13, 4)]
        answers = await asyncio.gather(*requests, return_exceptions=True)
        await batcher.close()
        return [answer if isinstance(answer, Exception) else answer.score.tolist() for answer in answers]

    first, second, failed, last = asyncio.run(scenario())
    assert (first, second, last) == ([1], [2], [4])
    assert isinstance(failed, RuntimeError)


def test_a_count_that_fails_keeps_nobody_waiting(caplog: pytest.LogCaptureFixture):
    def full_disk(rows: int) -> None:
        raise OSError("no space left on device")

    async def scenario() -> list[list[float]]:
        batcher = Batcher(echo, max_batch_rows=1, max_waiting_rows=8, on_batch=full_disk)
        answers = await asyncio.wait_for(asyncio.gather(*(batcher.submit(rows(value)) for value in (1, 2, 3))), 10)
        await batcher.close()
        return [answer.score.tolist() for answer in answers]

    assert asyncio.run(scenario()) == [[1], [2], [3]]
    assert [(record.message, record.fields) for record in caplog.records if record.levelname == "ERROR"] == [
        ("batch not counted", {"error": "OSError"})
    ] * 3


def test_closing_answers_what_was_taken():
    async def scenario() -> list[list[float]]:
        batcher = Batcher(echo, max_batch_rows=2, max_waiting_rows=100)
        requests = [asyncio.create_task(batcher.submit(rows(value))) for value in range(9)]
        await asyncio.sleep(0)
        await batcher.close()
        assert all(request.done() for request in requests)
        return [request.result().score.tolist() for request in requests]

    assert asyncio.run(scenario()) == [[value] for value in range(9)]


def test_many_clients_each_get_their_own_answer():
    sizes: list[int] = []

    async def client(batcher: Batcher, number: int) -> int:
        rng = np.random.default_rng(number)
        for _ in range(20):
            inputs = rng.normal(size=(rng.integers(1, 9), 1))
            answer = await batcher.submit(inputs)
            np.testing.assert_array_equal(answer.score, inputs[:, 0].astype(np.float32))
        return 20

    async def scenario() -> int:
        batcher = Batcher(echo, max_batch_rows=64, max_waiting_rows=10_000, on_batch=sizes.append)
        counts = await asyncio.gather(*(client(batcher, number) for number in range(64)))
        await batcher.close()
        return sum(counts)

    assert asyncio.run(scenario()) == 64 * 20
    assert max(sizes) > 8  # requests did share batches
    assert max(sizes) <= 64
