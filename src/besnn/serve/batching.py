"""Adaptive micro-batching: the requests that arrive while one batch is scored make up the next."""

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from besnn.detector import Predictions
from besnn.serve.inputs import Inputs
from besnn.serve.problems import busy

T = TypeVar("T")

_LOG = logging.getLogger(__name__)


@dataclass(eq=False)
class _Request:
    inputs: Inputs
    answer: asyncio.Future[Predictions] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class Batcher:
    """Scores the inputs of concurrent requests together, in a thread of its own, in order of arrival.

    A single request is scored at once. A batch holds what arrived while the previous one was scored. Only a single large
    request exceeds the limits. `on_batch` is called with the number of inputs of each batch.
    """

    def __init__(
        self,
        score: Callable[[Inputs], Predictions],
        max_batch_rows: int,
        max_waiting_rows: int,
        on_batch: Callable[[int], None] = lambda rows: None,
    ) -> None:
        self._score, self._on_batch = score, on_batch
        self._max_batch_rows, self._max_waiting_rows = max_batch_rows, max_waiting_rows
        self._waiting: deque[_Request] = deque()
        self._waiting_rows = 0
        self._seconds_per_row = 0.0
        self._began: float | None = None  # when the scorer began with what it is scoring now
        self.failed = False  # whether the scorer failed on the last inputs that it was given
        self._worker: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="scoring")

    async def submit(self, inputs: Inputs) -> Predictions:
        """Return the predictions for inputs `[n, ...]`; a call that is cancelled while it waits is never scored."""
        if self._waiting_rows and self._waiting_rows + len(inputs) > self._max_waiting_rows:
            seconds = max(1, math.ceil(self._waiting_rows * self._seconds_per_row))
            raise busy("too many inputs are waiting", seconds)
        request = _Request(inputs)
        self._waiting.append(request)
        self._waiting_rows += len(inputs)
        if self._worker is None or self._worker.done():
            self._worker = asyncio.get_running_loop().create_task(self._work())
        return await request.answer

    def seconds_at_work(self) -> float:
        """Return for how long the scorer has been scoring the same inputs; 0 if it is idle."""
        return 0.0 if self._began is None else time.monotonic() - self._began

    async def run(self, function: Callable[[], T]) -> T:
        """Call a function in the thread that scores, in its turn."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, function)

    async def close(self) -> None:
        """Answer all accepted requests, then end the thread."""
        if self._worker is not None:
            await self._worker
        self._thread.shutdown()

    async def _work(self) -> None:
        while batch := self._next_batch():
            began = time.monotonic()
            await self._answer(batch)
            rows = sum(len(request.inputs) for request in batch)
            try:
                self._on_batch(rows)
            except Exception as error:  # the requests that wait must still be answered
                _LOG.error("batch not counted", extra={"fields": {"error": type(error).__name__}})
            self._seconds_per_row += 0.2 * ((time.monotonic() - began) / rows - self._seconds_per_row)

    def _next_batch(self) -> list[_Request]:
        batch: list[_Request] = []
        rows = 0
        while self._waiting and (not batch or rows + len(self._waiting[0].inputs) <= self._max_batch_rows):
            request = self._waiting.popleft()
            self._waiting_rows -= len(request.inputs)
            if not request.answer.done():  # else its client has gone
                batch.append(request)
                rows += len(request.inputs)
        return batch

    async def _answer(self, batch: list[_Request]) -> None:
        def score() -> Predictions:
            return self._score(np.concatenate([request.inputs for request in batch]))

        self._began = time.monotonic()
        try:
            predictions = await asyncio.get_running_loop().run_in_executor(self._thread, score)
            self._began, self.failed = None, False
        except Exception as error:
            self._began, self.failed = None, True
            if len(batch) > 1:  # one bad input must not fail the others
                for request in batch:
                    await self._answer([request])
            elif not batch[0].answer.done():
                batch[0].answer.set_exception(error)
            return
        start = 0
        for request in batch:
            stop = start + len(request.inputs)
            if not request.answer.done():
                request.answer.set_result(predictions[start:stop])
            start = stop
