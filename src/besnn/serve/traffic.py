"""Recent traffic and the drift alarm over it: one stream for all workers, kept across restarts."""

from collections import deque
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field

from besnn.detection import ConformalThreshold, DriftMonitor
from besnn.errors import DataError
from besnn.predictions import Predictions
from besnn.serve.drift import DriftStore
from besnn.serve.settings import Settings

RECENT = 240
KEPT = 16_384
"""Inputs, the last ones, that are kept for another try when the store cannot be written."""


class RecentInput(BaseModel):
    """One of the last inputs."""

    p_value: float
    is_ood: bool
    log_martingale: float = Field(description="Natural logarithm of the evidence for drift after this input.")


class DriftReport(BaseModel):
    """Where the stream of all inputs stands."""

    steps: int = Field(description="Inputs seen.")
    log_martingale: float = Field(description="Natural logarithm of the evidence that inputs have changed.")
    alarm: bool
    alarm_step: int | None = Field(description="The input at which the evidence first reached the alarm level.")
    alarm_level: float = Field(description="L: the alarm is ever raised falsely with probability at most 1/L.")
    ood_rate: float | None = Field(description="Share of unknown inputs among the last ones.")
    ood_rate_interval: tuple[float, float] = Field(description="Exact 95 % interval of the rate behind that share.")
    window: int = Field(description="How many of the last inputs the rate is taken over.")
    recent: list[RecentInput] = Field(description=f"Up to {RECENT} of the last inputs, oldest first.")


class Traffic:
    """Gathers what was predicted and hands it to the drift monitor, which lives in a store that workers share.

    `record` is quick and never waits; `report` and `flush` may wait for another worker.

    Args:
        threshold: the detector's; its calibration scores are what the stream is compared with.
        settings: for the alarm level, the window and the file to keep the state in.
    """

    def __init__(self, threshold: ConformalThreshold, settings: Settings) -> None:
        self._monitor = DriftMonitor.from_calibration(
            threshold.scores, threshold.threshold, alarm_level=settings.drift_alarm_level, window=settings.drift_window
        )
        self._store = DriftStore(settings.drift_state)
        self._pending: deque[NDArray[np.float64]] = deque()  # each [3, n]: scores, p-values, whether unknown
        self.report()  # a state that does not fit the model is found now, not at the first input

    def record(self, predictions: Predictions) -> None:
        """Takes note of what was predicted."""
        self._pending.append(np.array([predictions.score, predictions.p_value, predictions.is_ood], np.float64))

    def flush(self) -> None:
        """Brings all that was recorded to the store."""
        if self._pending:
            self.report()

    def report(self) -> DriftReport:
        """Where the stream stands, with all that was recorded.

        Raises:
            DataError: the store cannot be read or written; what was recorded waits for the next call.
        """
        taken = np.empty((3, 0))
        try:
            with self._store.document() as document:
                self._store.restore(self._monitor, document)
                taken = self._take()  # in one go, for one update costs as much as hundreds of inputs do
                recent = document.get("recent", []) + self._update(taken)
                document |= {"monitor": self._monitor.state_dict(), "recent": recent[-RECENT:]}
                status = self._monitor.status()
        except DataError:
            kept = np.concatenate([taken, self._take()], axis=1)[:, -KEPT:]
            if kept.size:
                self._pending.appendleft(kept)
            raise
        return DriftReport(
            steps=status.steps,
            log_martingale=status.log_martingale,
            alarm=status.alarm,
            alarm_step=status.alarm_step,
            alarm_level=self._monitor.alarm_level,
            ood_rate=status.ood_rate,
            ood_rate_interval=status.ood_rate_interval,
            window=self._monitor.window,
            recent=[RecentInput(p_value=p, is_ood=ood, log_martingale=log) for p, ood, log in document["recent"]],
        )

    def _take(self) -> NDArray[np.float64]:
        """All that waits, `[3, n]`; other threads may record or take meanwhile."""
        taken = [np.empty((3, 0))]
        with suppress(IndexError):  # there is no more
            while True:
                taken.append(self._pending.popleft())
        return np.concatenate(taken, axis=1)

    def _update(self, taken: NDArray[np.float64]) -> list[tuple[float, bool, float]]:
        """Brings scores, p-values and flags `[3, n]` to the monitor; what to remember of the last of them."""
        scores, p_values, is_ood = taken
        columns = p_values, is_ood.astype(bool), self._monitor.update(scores)
        return list(zip(*(column[-RECENT:].tolist() for column in columns), strict=True))

    def close(self) -> None:
        """Brings the last of it to the store and lets go of it."""
        self.flush()
        self._store.close()
