import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import numpy as np
import pytest

from besnn.serve.batching import Batcher
from besnn.serve.problems import Problem

pytestmark = pytest.mark.anyio


class Echo:
    """Predictions whose score is the input itself; all that the batcher needs of them is slicing."""

    def __init__(self, inputs: np.ndarray) -> None:
        self.score = inputs[:, 0]

    def __getitem__(self, rows: slice) -> "Echo":
        return Echo(self.score[rows, None])


class Gate:
    """Scores only once it is opened; remembers its batches."""

    def __init__(self) -> None:
        self.opened, self.entered = threading.Event(), threading.Event()
        self.batches: list[list[float]] = []

    def __call__(self, inputs: np.ndarray) -> Echo:
        self.entered.set()
        assert self.opened.wait(10)
        self.batches.append(inputs[:, 0].tolist())
        return Echo(inputs)


def rows(*values: float) -> np.ndarray:
    return np.array(values, dtype=float)[:, None]


def submit(batcher: Batcher, *values: float) -> asyncio.Task:
    return asyncio.create_task(batcher.submit(rows(*values)))


@asynccontextmanager
async def busy(max_batch_rows: int, max_waiting_rows: int) -> AsyncIterator[tuple[Gate, Batcher, asyncio.Task]]:
    """A batcher that is scoring the input 1 until its gate is opened."""
    gate = Gate()
    batcher = Batcher(gate, max_batch_rows, max_waiting_rows)
    first = submit(batcher, 1)
    while not gate.entered.is_set():
        await asyncio.sleep(0.001)
    yield gate, batcher, first
    await batcher.close()


async def test_requests_that_arrive_while_a_batch_is_scored_make_up_the_next():
    async with busy(max_batch_rows=4, max_waiting_rows=100) as (gate, batcher, first):
        others = [submit(batcher, *values) for values in ([2, 3], [4], [5, 6], [7, 8, 9, 10, 11])]
        await asyncio.sleep(0)
        gate.opened.set()
        answers = await asyncio.gather(first, *others)
    assert [answer.score.tolist() for answer in answers] == [[1], [2, 3], [4], [5, 6], [7, 8, 9, 10, 11]]
    # A single request is scored at once, requests stay whole, and only a single one exceeds the limit.
    assert gate.batches == [[1], [2, 3, 4], [5, 6], [7, 8, 9, 10, 11]]


async def test_a_full_queue_refuses_and_says_when_to_return():
    async with busy(max_batch_rows=1, max_waiting_rows=3) as (gate, batcher, first):
        large = submit(batcher, 2, 3, 4, 5)  # the queue is empty: accepted, whatever its size
        await asyncio.sleep(0)
        with pytest.raises(Problem, match="waiting") as refused:
            await batcher.submit(rows(6))
        assert int(refused.value.headers["Retry-After"]) >= 1
        gate.opened.set()
        await asyncio.gather(first, large)
        assert (await batcher.submit(rows(7))).score.tolist() == [7]  # there is room again


async def test_a_cancelled_request_is_not_scored():
    async with busy(max_batch_rows=8, max_waiting_rows=8) as (gate, batcher, first):
        impatient, patient = submit(batcher, 2), submit(batcher, 3)
        await asyncio.sleep(0)
        impatient.cancel()
        gate.opened.set()
        await asyncio.gather(first, patient)
    assert impatient.cancelled()
    assert gate.batches == [[1], [3]]


async def test_an_input_that_fails_does_not_fail_its_neighbours():
    def score(inputs: np.ndarray) -> Echo:
        if (inputs == 13).any():
            raise RuntimeError("thirteen")
        return Echo(inputs)

    batcher = Batcher(score, max_batch_rows=8, max_waiting_rows=8)
    first, second, failed, last = await asyncio.gather(
        *(batcher.submit(rows(value)) for value in (1, 2, 13, 4)), return_exceptions=True
    )
    await batcher.close()
    assert [answer.score.tolist() for answer in (first, second, last)] == [[1], [2], [4]]
    assert isinstance(failed, RuntimeError)


async def test_a_count_that_fails_delays_no_answer(caplog: pytest.LogCaptureFixture):
    def full_disk(rows: int) -> None:
        raise OSError("no space left on device")

    batcher = Batcher(Echo, max_batch_rows=1, max_waiting_rows=8, on_batch=full_disk)
    answers = await asyncio.wait_for(asyncio.gather(*(batcher.submit(rows(value)) for value in (1, 2, 3))), 10)
    await batcher.close()
    assert [answer.score.tolist() for answer in answers] == [[1], [2], [3]]
    errors = [(record.message, record.fields) for record in caplog.records if record.levelname == "ERROR"]
    assert errors == [("batch not counted", {"error": "OSError"})] * 3


async def test_closing_answers_accepted_requests():
    sizes: list[int] = []
    batcher = Batcher(Echo, max_batch_rows=2, max_waiting_rows=100, on_batch=sizes.append)
    requests = [submit(batcher, value) for value in range(9)]
    await asyncio.sleep(0)
    await batcher.close()
    assert all(request.done() for request in requests)
    assert [request.result().score.tolist() for request in requests] == [[value] for value in range(9)]
    assert sizes == [2, 2, 2, 2, 1]
