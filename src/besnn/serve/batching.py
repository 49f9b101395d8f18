"""Adaptive micro-batching: whatever waits while one batch is scored makes up the next."""

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from besnn.predictions import Predictions

Inputs = NDArray[Any]

_LOG = logging.getLogger(__name__)


class QueueFullError(Exception):
    """No room for more inputs.

    Attributes:
        retry_after: whole seconds until there should be.
    """

    def __init__(self, retry_after: int) -> None:
        super().__init__(f"the queue is full: come back in {retry_after} s")
        self.retry_after = retry_after


@dataclass(eq=False)
class _Request:
    inputs: Inputs
    answer: asyncio.Future[Predictions] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class Batcher:
    """Scores the inputs of concurrent requests together, in one thread of its own, in the order in which they came.

    A lone request is scored at once; there is no waiting for company. A batch is what has gathered while the one before it
    was scored, up to a limit that only a single larger request exceeds.

    Args:
        score: from inputs `[n, ...]` to their predictions.
        max_batch_rows: inputs that are scored together.
        max_waiting_rows: inputs that may wait; none are taken beyond it, unless nothing waits.
        on_batch: told the number of inputs of each batch.
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
        self._worker: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="scoring")

    async def submit(self, inputs: Inputs) -> Predictions:
        """The predictions for inputs `[n, ...]`. One that is cancelled while it waits is never scored.

        Raises:
            QueueFullError: too many inputs wait already.
        """
        if self._waiting_rows and self._waiting_rows + len(inputs) > self._max_waiting_rows:
            raise QueueFullError(max(1, math.ceil(self._waiting_rows * self._seconds_per_row)))
        request = _Request(inputs)
        self._waiting.append(request)
        self._waiting_rows += len(inputs)
        if self._worker is None or self._worker.done():
            self._worker = asyncio.get_running_loop().create_task(self._work())
        return await request.answer

    async def close(self) -> None:
        """Answers all that was taken, then ends the thread."""
        if self._worker is not None:
            await self._worker
        self._thread.shutdown()

    async def _work(self) -> None:
        """Scores batch after batch until nothing waits."""
        while batch := self._next_batch():
            began = time.monotonic()
            await self._answer(batch)
            rows = sum(len(request.inputs) for request in batch)
            try:
                self._on_batch(rows)
            except Exception as error:  # those who wait must be answered all the same
                _LOG.error("batch not counted", extra={"fields": {"error": type(error).__name__}})
            self._seconds_per_row += 0.2 * ((time.monotonic() - began) / rows - self._seconds_per_row)

    def _next_batch(self) -> list[_Request]:
        batch: list[_Request] = []
        rows = 0
        while self._waiting and (not batch or rows + len(self._waiting[0].inputs) <= self._max_batch_rows):
            request = self._waiting.popleft()
            self._waiting_rows -= len(request.inputs)
            if not request.answer.done():  # its client has stopped waiting
                batch.append(request)
                rows += len(request.inputs)
        return batch

    def _score_together(self, batch: list[_Request]) -> Predictions:
        return self._score(np.concatenate([request.inputs for request in batch]))

    async def _answer(self, batch: list[_Request]) -> None:
        loop = asyncio.get_running_loop()
        try:
            predictions = await loop.run_in_executor(self._thread, self._score_together, batch)
        except Exception as error:
            if len(batch) == 1:
                _settle(batch[0], error)
            else:  # one input's fault must not be the others'
                for request in batch:
                    await self._answer([request])
            return
        start = 0
        for request in batch:
            stop = start + len(request.inputs)
            _settle(request, predictions[start:stop])
            start = stop


def _settle(request: _Request, outcome: Predictions | Exception) -> None:
    if request.answer.done():
        return
    if isinstance(outcome, Exception):
        request.answer.set_exception(outcome)
    else:
        request.answer.set_result(outcome)
