"""What all routes share: one detector, the queue in front of it, deadlines, and the record of what was predicted."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import TypeVar

import numpy as np
from fastapi import Request

from besnn.detector import Detector, Explanation, Predictions
from besnn.errors import NotReadyError
from besnn.serve.batching import Batcher
from besnn.serve.bodies import Budget, media_type, read_body
from besnn.serve.drift import Traffic
from besnn.serve.inputs import DECODERS, Allowance, InputReader, Inputs
from besnn.serve.problems import Problem
from besnn.serve.settings import Settings
from besnn.serve.telemetry import Metrics

FLUSH_SECONDS = 1.0
"""How long recorded traffic may wait before it is brought to the drift monitor's store."""

QUICK_BYTES = 32 * 1024
"""The longest body of numbers that is parsed faster than it is handed to another thread."""

T = TypeVar("T")

_PARSERS = 2
_LOG = logging.getLogger(__name__)


class Service:
    """Reads inputs, predicts them in batches with a calibrated detector, and records the predictions."""

    def __init__(self, detector: Detector, settings: Settings) -> None:
        if detector.threshold is None:
            raise NotReadyError("the detector is not calibrated: calibrate it with held-out inputs before serving it")
        self.detector, self.settings, self.threshold = detector, settings, detector.threshold
        self._bodies, self._decoded = Budget(settings.max_bytes_in_flight), Budget(settings.max_decoded_bytes)
        self.reader = InputReader(detector.input_shape, settings, detector.preprocessing.short_side)
        self.traffic = Traffic(self.threshold, settings)
        self.metrics = Metrics(self.threshold, self.traffic.report)
        self._batcher = Batcher(detector.predict, settings.max_batch_rows, settings.max_waiting_rows, self.metrics.batch)
        self._parsers = ThreadPoolExecutor(_PARSERS, thread_name_prefix="parsing")
        self._decoding = ThreadPoolExecutor(DECODERS, thread_name_prefix="decoding")
        self._flushing: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def parsed(
        self,
        request: Request,
        media_types: Sequence[str],
        parse: Callable[[bytes, str, Allowance], T],
        has_images: Callable[[bytes, str], bool] = lambda body, content_type: False,
    ) -> AsyncIterator[T]:
        """Yield what `parse` makes of a request's body and Content-Type; from then on the block must end before the deadline.

        A short body is parsed at once, a longer one in a thread, so that other requests go on. Images have threads of their
        own, because decoding them can take long.
        """
        content_type = request.headers.get("content-type", "")
        if media_type(content_type) not in media_types:
            named = " or ".join(filter(None, media_types))
            raise Problem(415, "media-type-unsupported", f"send the body as {named}, and say so in Content-Type")
        limit = self.settings.deadline_seconds
        with self._bodies.share() as take, self._decoded.share() as take_decoded:
            body = await read_body(request, self.settings, take)
            threads = self._decoding if has_images(body, content_type) else self._parsers
            read = partial(parse, body, content_type, Allowance(time.monotonic() + limit, take_decoded))
            try:
                async with asyncio.timeout(limit):
                    if threads is self._parsers and len(body) <= QUICK_BYTES:
                        yield read()
                    else:
                        yield await asyncio.get_running_loop().run_in_executor(threads, read)
            except TimeoutError:
                detail = f"there was no answer within {limit:g} s: try again, or send fewer inputs"
                raise Problem(504, "deadline-exceeded", detail) from None

    async def require_ready(self) -> None:
        """Raise a problem that says what fails, after another attempt."""
        if self._batcher.failed:
            kind = np.uint8 if self.reader.is_image else np.float32
            with suppress(Exception):
                async with asyncio.timeout(self.settings.deadline_seconds):
                    await self._batcher.submit(np.zeros((1, *self.detector.input_shape), kind))
        if self.traffic.problem is not None:
            await asyncio.to_thread(self.traffic.report)
        reasons = {
            "the model fails: see the log": self._batcher.failed,
            "the model does not answer": self._batcher.seconds_at_work() > self.settings.deadline_seconds,
            "the drift state cannot be read or written: see /v1/drift": self.traffic.problem is not None,
        }
        if any(reasons.values()):
            raise Problem(503, "not-ready", "; ".join(reason for reason, holds in reasons.items() if holds))

    async def predict(self, inputs: Inputs, *, observe: bool = True) -> Predictions:
        """Predict inputs `[n, ...]`, together with those of other requests; with `observe` they count as traffic."""
        predictions = await self._batcher.submit(inputs)
        if observe:
            self.metrics.predictions(predictions)
            self.traffic.record(predictions)
            if self._flushing is None or self._flushing.done():
                self._flushing = asyncio.get_running_loop().create_task(self._flush_soon())
        return predictions

    async def explain(self, inputs: Inputs, *, heat_map: bool) -> Explanation:
        """Explain inputs `[n, ...]`; they do not count as traffic."""
        return await self._batcher.run(lambda: self.detector.explain(inputs, heat_map=heat_map))

    async def close(self) -> None:
        """Answer accepted requests, store their record, and end the threads."""
        await self._batcher.close()
        if self._flushing is not None:
            self._flushing.cancel()
        self.reader.close()
        await asyncio.to_thread(self.traffic.flush)
        self._parsers.shutdown()
        self._decoding.shutdown()

    async def _flush_soon(self) -> None:
        await asyncio.sleep(FLUSH_SECONDS)
        try:
            await asyncio.to_thread(self.traffic.flush)
        except Exception as error:  # a full disk must not stop predictions
            _LOG.error("drift state not written", extra={"fields": {"error": type(error).__name__}})
