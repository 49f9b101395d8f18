"""Detect drift in a stream of scores, with a bound on the probability of ever raising a false alarm."""

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from besnn.checks import Numbers, as_vector
from besnn.detection.conformal import binomial_interval, exceeds
from besnn.errors import InputError

STEPS_AT_ONCE = 65536  # bounds the memory of a long update
SCORES_AT_ONCE = 128  # compared with each other at once

# Bets that a share of the inputs is unusual, with small p-values: (1 − share) + share · ε p^(ε − 1).
SHARES = (0.01, 0.03, 0.1, 0.3, 1.0)
EXPONENTS = (0.1, 0.5)
# Bets on each decile of p-values, which find other changes (inputs too ordinary, a sensor that repeats itself).
DECILES = 10
DECILE_STAKE = 0.2

BETS = len(SHARES) * len(EXPONENTS) + DECILES

# Capital in reserve after t steps: (1 + (t + 1) / 100)^(−1/4). A bet that starts at step t, before a change, then starts with
# about t^(−5/4), so the delay of an alarm grows only with log t.
RESERVE_STEPS = 100
RESERVE_DECAY = 0.25


@dataclass(frozen=True)
class DriftStatus:
    """The state of a stream.

    Attributes:
        steps: how many scores there have been.
        log_martingale: natural logarithm of the evidence against "nothing has changed".
        alarm_step: the first step at which the evidence reached the alarm level, or None.
        ood_rate: share of out-of-distribution inputs in the window, or None before the first score.
        ood_rate_interval: the exact (Clopper–Pearson) 95 % interval.

    >>> monitor = DriftMonitor([0.0, 1.0], ood_threshold=1.5)
    >>> log_martingale = monitor.update([0.2, 0.5, 2.0, 0.1])
    >>> status = monitor.status()
    >>> status.steps, status.ood_rate, status.alarm
    (4, 0.25, False)
    """

    steps: int
    log_martingale: float
    alarm_step: int | None
    ood_rate: float | None
    ood_rate_interval: tuple[float, float]

    @property
    def alarm(self) -> bool:
        """Whether the evidence ever reached the alarm level."""
        return self.alarm_step is not None


class DriftMonitor:
    """A conformal test martingale (Vovk et al. 2003) and a windowed rate of out-of-distribution inputs.

    Each score gets a p-value among all scores so far, including the initial ones. While the scores are exchangeable, the
    p-values are independent and uniform, so the capital of a bettor against uniformity is a martingale that starts at 1:
    P(it *ever* reaches L) ≤ 1/L, on an endless stream (Ville). Memory is constant: scores are counted in the cells of a
    fixed grid, and ties within a cell are broken at random, which keeps the p-values exact.

    Args:
        edges: `[cells − 1]`, ascending, the grid; from any data except the initial scores and the stream.
        ood_threshold: an input is out-of-distribution if and only if its score exceeds this.
        initial_scores: known before the stream; without them only a change *within* the stream can be detected.
        alarm_level: L; the probability of ever raising a false alarm is at most 1/L.
        window: over how many of the last scores the rate of out-of-distribution inputs is computed.

    >>> rng = np.random.default_rng(0)
    >>> monitor = DriftMonitor.from_calibration(rng.normal(size=2000), ood_threshold=1.64)
    >>> log_martingale = monitor.update(rng.normal(size=5000))
    >>> monitor.status().alarm
    False
    >>> log_martingale = monitor.update(rng.normal(size=200) + 1)
    >>> monitor.status().alarm
    True
    """

    def __init__(
        self,
        edges: Tensor | Numbers,
        ood_threshold: float,
        initial_scores: Tensor | Numbers = (),
        alarm_level: float = 100.0,
        window: int = 1000,
        seed: int = 0,
    ) -> None:
        grid = as_vector(edges, "edges")
        if not np.isfinite(grid).all() or (np.diff(grid) <= 0).any():
            raise InputError("edges must be finite and ascending: sort them and drop duplicates")
        if not alarm_level > 1:
            raise InputError(f"alarm_level={alarm_level} is too low: choose one above 1, such as 100 for 1 false alarm in 100")
        if window < 1:
            raise InputError(f"window={window} holds no scores: choose at least 1")
        self.ood_threshold = float(ood_threshold)
        self.alarm_level = float(alarm_level)
        self.window = window
        self.seed = seed
        self._counts = ScoreCounts(grid)
        self._counts.add(as_vector(initial_scores, "initial scores"))
        self._steps = 0
        self._log_capital = initial_log_capital()
        self._log_martingale = 0.0
        self._alarm_step: int | None = None
        self._flags: deque[bool] = deque(maxlen=window)
        self._ties = np.random.Generator(np.random.PCG64(seed))

    @classmethod
    def from_calibration(
        cls,
        scores: Tensor | Numbers,
        ood_threshold: float,
        cells: int = 1000,
        alarm_level: float = 100.0,
        window: int = 1000,
        seed: int = 0,
    ) -> Self:
        """Make a monitor from calibration scores `[n]`: a random half sets the grid, the other half are the initial scores.

        One half cannot do both: a grid fitted to the initial scores would spread them more evenly than new scores.
        """
        shuffled = np.random.default_rng(seed).permutation(as_vector(scores, "calibration scores"))
        half, initial = np.array_split(shuffled, 2)
        if len(initial) == 0 or not np.isfinite(shuffled).all():
            raise InputError("calibration scores must be finite, and at least two: use those of the threshold")
        edges = np.unique(np.quantile(half, np.linspace(0, 1, cells - 1)))
        return cls(edges, ood_threshold, initial, alarm_level, window, seed)

    def update(self, scores: Tensor | Numbers) -> NDArray[np.float64]:
        """Take scores `[n]` in order and return the log martingale after each, `[n]`, however they are divided among calls."""
        values = as_vector(scores, "scores")
        runs = [self._run(values[start : start + STEPS_AT_ONCE]) for start in range(0, len(values), STEPS_AT_ONCE)]
        return np.concatenate([np.empty(0), *runs])

    def _run(self, scores: NDArray[np.float64]) -> NDArray[np.float64]:
        p_values = self._counts.p_values(scores, ties=1 - self._ties.random(len(scores)))
        self._log_capital, log_martingale = play(self._log_capital, log_payoffs(p_values), self._steps)
        reached = np.flatnonzero(log_martingale >= math.log(self.alarm_level))
        if self._alarm_step is None and len(reached):
            self._alarm_step = self._steps + 1 + int(reached[0])
        self._log_martingale = float(log_martingale[-1])
        self._steps += len(scores)
        recent = torch.from_numpy(scores[-self.window :])
        self._flags.extend(exceeds(recent, torch.tensor(self.ood_threshold, dtype=torch.float64)).tolist())
        return log_martingale

    def status(self) -> DriftStatus:
        """Return the current state of the stream."""
        flagged, seen = sum(self._flags), len(self._flags)
        rate, interval = (flagged / seen, binomial_interval(flagged, seen)) if seen else (None, (0.0, 1.0))
        return DriftStatus(self._steps, self._log_martingale, self._alarm_step, rate, interval)

    def state_dict(self) -> dict[str, Any]:
        """Return what the monitor needs to continue after a restart, as JSON-able values."""
        return {
            **self._settings(),
            "steps": self._steps,
            "counts": self._counts.counts.tolist(),
            "log_capital": self._log_capital.tolist(),
            "log_martingale": self._log_martingale,
            "alarm_step": self._alarm_step,
            "flags": "".join("01"[flag] for flag in self._flags),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue exactly where the monitor that gave `state` stopped; it must have the same settings."""
        if missing := self.state_dict().keys() - state.keys():
            raise InputError(f"the state lacks {sorted(missing)}: start a new stream, or pass the complete state")
        for name, value in self._settings().items():
            if state[name] != value:
                raise InputError(f"the state was saved with different {name}: start a new stream, or restore the setting")
        self._steps = int(state["steps"])
        self._counts.counts = np.array(state["counts"], dtype=np.int64)
        self._log_capital = np.array(state["log_capital"], dtype=np.float64)
        self._log_martingale = float(state["log_martingale"])
        self._alarm_step = state["alarm_step"]
        self._flags = deque((flag == "1" for flag in state["flags"]), maxlen=self.window)
        self._ties = np.random.Generator(np.random.PCG64(self.seed).advance(self._steps))  # one number was drawn per step

    def _settings(self) -> dict[str, Any]:
        return {
            "edges": self._counts.edges.tolist(),
            "ood_threshold": self.ood_threshold,
            "alarm_level": self.alarm_level,
            "window": self.window,
            "seed": self.seed,
        }


class ScoreCounts:
    """Scores counted in the cells of a fixed grid, and exact p-values against them."""

    def __init__(self, edges: NDArray[np.float64]) -> None:
        self.edges = edges
        self.counts = np.zeros(len(edges) + 1, dtype=np.int64)  # by cell

    def add(self, scores: NDArray[np.float64]) -> None:
        """Add scores `[n]`."""
        self.counts += np.bincount(self._cells(scores), minlength=len(self.counts))

    def p_values(self, scores: NDArray[np.float64], ties: NDArray[np.float64]) -> NDArray[np.float64]:
        """Compute smoothed p-values (#{higher} + u #{equal, including itself}) / #{all} `[n]`, and add each score in turn.

        They are independent and uniform if all scores are exchangeable and the `ties` u are independent and uniform in (0, 1].
        """
        cells = self._cells(scores)
        chunks = [slice(start, start + SCORES_AT_ONCE) for start in range(0, len(cells), SCORES_AT_ONCE)]
        return np.concatenate([np.empty(0), *(self._chunk_p_values(cells[part], ties[part]) for part in chunks)])

    def _chunk_p_values(self, cells: NDArray[np.int64], ties: NDArray[np.float64]) -> NDArray[np.float64]:
        higher = self.counts.sum() - self.counts.cumsum()
        earlier = np.tri(len(cells), k=-1, dtype=bool)
        higher_before = higher[cells] + ((cells > cells[:, None]) & earlier).sum(axis=1)
        equal_before = self.counts[cells] + ((cells == cells[:, None]) & earlier).sum(axis=1)
        size = self.counts.sum() + np.arange(1, len(cells) + 1)
        self.counts += np.bincount(cells, minlength=len(self.counts))
        p_values: NDArray[np.float64] = (higher_before + ties * (equal_before + 1)) / size
        return p_values

    def _cells(self, scores: NDArray[np.float64]) -> NDArray[np.int64]:
        return np.searchsorted(self.edges, scores, side="right")


def log_payoffs(p_values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Compute the log payoff log f(p) of every bet, where f ≥ 0 has mean 1 for uniform p: `[steps]` to `[steps, BETS]`."""
    p = p_values[:, None]
    shares, exponents = (grid.ravel() for grid in np.meshgrid(SHARES, EXPONENTS))
    small = np.log1p(shares * np.expm1(np.log(exponents) + (exponents - 1) * np.log(p)))
    crowded = np.ceil(p * DECILES) == np.arange(1, DECILES + 1)
    return np.concatenate([small, np.log(1 - DECILE_STAKE + DECILE_STAKE * DECILES * crowded)], axis=1)


def initial_log_capital() -> NDArray[np.float64]:
    """Return the log capital of every bet before the first step, `[BETS]`: all but the reserve, in equal parts."""
    return np.full(BETS, math.log(-math.expm1(_log_reserve(np.array(0))) / BETS))


def play(
    log_capital: NDArray[np.float64], payoffs: NDArray[np.float64], step: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Bet on a run of p-values: before each, the reserve releases capital to the bets in equal parts; then each bet is paid.

    From the log capital `[BETS]` after `step` steps and log payoffs `[steps, BETS]`, compute the log capital after the run,
    `[BETS]`, and the log of all capital, including the reserve, after each step.
    """
    t = np.arange(step + 1, step + 1 + len(payoffs))
    log_released = _log_reserve(t - 1) + np.log(-np.expm1(_log_reserve(t) - _log_reserve(t - 1)))
    # A_t = (A_{t-1} + released_t / BETS) f_t, solved for the whole run: A_t = F_t (A_0 + Σ_{s≤t} released_s / BETS / F_{s-1}).
    log_product = payoffs.cumsum(axis=0)
    deposits = (log_released - math.log(BETS))[:, None] - (log_product - payoffs)
    deposits[0] = np.logaddexp(deposits[0], log_capital)
    path = np.logaddexp.accumulate(deposits, axis=0) + log_product
    return path[-1], np.logaddexp(np.logaddexp.reduce(path, axis=1), _log_reserve(t))


def _log_reserve(t: NDArray[np.int64]) -> NDArray[np.float64]:
    return -RESERVE_DECAY * np.log1p((t + 1) / RESERVE_STEPS)
