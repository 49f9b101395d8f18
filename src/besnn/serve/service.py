"""What all routes share: one detector, one queue in front of it, and a record of what went through."""

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import TypeVar

import numpy as np

from besnn.detection import ConformalThreshold
from besnn.detector import Detector
from besnn.errors import NotReadyError
from besnn.predictions import Predictions
from besnn.serve.batching import Batcher, Inputs, QueueFullError
from besnn.serve.bodies import BodyLimits
from besnn.serve.inputs import InputReader
from besnn.serve.problems import Problem
from besnn.serve.settings import Settings
from besnn.serve.telemetry import Metrics
from besnn.serve.traffic import Traffic

FLUSH_SECONDS = 1.0
"""How long recorded traffic may wait to be brought to the drift monitor's store."""

T = TypeVar("T")

_PARSERS = 2
_LOG = logging.getLogger(__name__)


class Service:
    """Reads inputs, has them predicted in batches, keeps record.

    Args:
        detector: calibrated.
        settings: limits and such.
    """

    def __init__(self, detector: Detector, settings: Settings) -> None:
        if detector.threshold is None:
            raise NotReadyError("the detector is not calibrated: calibrate it with held-out inputs before it is served")
        self.detector, self.settings, self.threshold = detector, settings, detector.threshold
        self.bodies = BodyLimits(settings)
        self.reader = InputReader(detector.input_shape, settings)
        self.traffic = Traffic(self.threshold, settings)
        self.metrics = Metrics(_score_buckets(self.threshold), self.traffic.report)
        self._batcher = Batcher(detector.predict, settings.max_batch_rows, settings.max_waiting_rows, self.metrics.batch)
        self._parsers = ThreadPoolExecutor(_PARSERS, thread_name_prefix="parsing")  # bounds what unpacked images need
        self._flushing: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def deadline(self) -> AsyncIterator[threading.Event]:
        """Bounds how long a client waits for what happens in the block; yields what tells threads that it has ended."""
        over = threading.Event()
        try:
            async with asyncio.timeout(self.settings.deadline_seconds):
                yield over
        except TimeoutError:
            seconds = f"{self.settings.deadline_seconds:g}"
            raise Problem(504, "deadline-exceeded", f"there was no answer within {seconds} s: try again, or fewer") from None
        finally:
            over.set()

    async def read(self, read: Callable[[], T], *, quick: bool) -> T:
        """Calls what reads a body: at once if that is quick, else in a thread, so as not to hold up other requests."""
        return read() if quick else await asyncio.get_running_loop().run_in_executor(self._parsers, read)

    async def predict(self, inputs: Inputs, *, observe: bool = True) -> Predictions:
        """Predictions for inputs `[n, ...]`, scored together with those of other requests.

        Args:
            inputs: as `InputReader` gives them.
            observe: whether they count as traffic.
        """
        try:
            predictions = await self._batcher.submit(inputs)
        except QueueFullError as full:
            retry = {"Retry-After": str(full.retry_after)}
            raise Problem(429, "busy", "too many inputs wait already: try again later", retry) from None
        if observe:
            self._observe(predictions)
        return predictions

    async def close(self) -> None:
        """Answers what was accepted, keeps the record of it, and ends the threads."""
        await self._batcher.close()
        if self._flushing is not None:
            self._flushing.cancel()
        await asyncio.to_thread(self.traffic.close)
        self._parsers.shutdown()

    def _observe(self, predictions: Predictions) -> None:
        self.metrics.predictions(predictions)
        self.traffic.record(predictions)
        if self._flushing is None or self._flushing.done():
            self._flushing = asyncio.get_running_loop().create_task(self._flush_soon())

    async def _flush_soon(self) -> None:
        await asyncio.sleep(FLUSH_SECONDS)
        try:
            await asyncio.to_thread(self.traffic.flush)
        except Exception as error:  # a full disk must not stop predictions
            _LOG.error("drift state not written", extra={"fields": {"error": type(error).__name__}})


def _score_buckets(threshold: ConformalThreshold) -> list[float]:
    """Quantiles of the known scores, τ, and as far beyond the largest as they spread: where scores tell most."""
    scores = threshold.scores.double().cpu().numpy()
    low, high = float(scores[0]), float(scores[-1])
    quantiles = np.quantile(scores, [0, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 1]).tolist()
    return sorted({*quantiles, threshold.threshold, *(high + factor * (high - low) for factor in (0.25, 0.5, 1, 2))})
