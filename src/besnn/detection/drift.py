"""An alarm for drift over a stream of scores, with a bound on ever raising it falsely."""

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binomtest
from torch import Tensor

from besnn.detection.arrays import Numbers, as_floating
from besnn.detection.bag import ScoreBag
from besnn.detection.bets import initial_log_capital, log_payoffs, play
from besnn.errors import InputError

STEPS_AT_ONCE = 65536  # bounds the memory of a long update


@dataclass(frozen=True)
class DriftStatus:
    """Where a stream stands.

    Attributes:
        steps: scores seen.
        log_martingale: natural logarithm of the evidence against "nothing has changed".
        alarm_step: the first step at which the evidence reached the alarm level, or None.
        ood_rate: share of out-of-distribution inputs in the window, or None before the first score.
        ood_rate_interval: exact (Clopper–Pearson) 95 % interval of the rate behind that share.
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

    Each score gets a p-value among all scores up to it, those of the initial bag included. While they are exchangeable
    the p-values are independent and uniform, so the capital of whoever bets against that is a martingale that starts at 1:
    P(it *ever* reaches L) ≤ 1/L, on a stream without end (Ville). Against a fixed calibration set instead, all p-values
    would share its luck, and the bound would break on long streams.

    Memory is constant: scores are counted in the cells of a fixed grid, and ties within a cell are broken at random,
    which keeps the p-values exact. All arithmetic is in logarithms and counts.

    Args:
        edges: `[cells − 1]`, rising, the grid; taken from any data but the bag and the stream.
        ood_threshold: an input is out-of-distribution iff its score exceeds this.
        bag: scores known before the stream; without them only a change *within* the stream can be seen.
        alarm_level: L; the probability of ever raising the alarm falsely is at most 1/L.
        window: how many of the last scores the rate of out-of-distribution inputs is taken over.
        seed: of the random ties.

    Example:
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
        bag: Tensor | Numbers = (),
        alarm_level: float = 100.0,
        window: int = 1000,
        seed: int = 0,
    ) -> None:
        grid = _array(edges, "edges")
        if not np.isfinite(grid).all() or (np.diff(grid) <= 0).any():
            raise InputError("edges must be finite and rising: sort them and drop the repeated ones")
        if not alarm_level > 1:
            raise InputError(f"alarm_level={alarm_level} is too low: choose one above 1, such as 100 for 1 false alarm in 100")
        if window < 1:
            raise InputError(f"window={window} holds no scores: choose at least 1")
        self.ood_threshold = float(ood_threshold)
        self.alarm_level = float(alarm_level)
        self.window = window
        self.seed = seed
        self._bag = ScoreBag(grid)
        self._bag.add(_array(bag, "scores of the bag"))
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
        """A monitor that knows the calibration scores `[n]`: a random half sets the grid, the other fills the bag.

        Half each, because a grid fitted to the bag's own scores would spread them more evenly than any new ones.
        """
        shuffled = np.random.default_rng(seed).permutation(_array(scores, "calibration scores"))
        half, bag = np.array_split(shuffled, 2)
        if len(bag) == 0 or not np.isfinite(shuffled).all():
            raise InputError("calibration scores must be finite and at least 2: use those of the threshold")
        edges = np.unique(np.quantile(half, np.linspace(0, 1, cells - 1)))
        return cls(edges, ood_threshold, bag, alarm_level, window, seed)

    def update(self, scores: Tensor | Numbers) -> NDArray[np.float64]:
        """Takes scores `[n]` in their order; returns the log martingale after each, `[n]`.

        In one call or in many, the same scores lead to the same end.
        """
        values = _array(scores, "scores")
        runs = [self._run(values[start : start + STEPS_AT_ONCE]) for start in range(0, len(values), STEPS_AT_ONCE)]
        return np.concatenate([np.empty(0), *runs])

    def _run(self, scores: NDArray[np.float64]) -> NDArray[np.float64]:
        p_values = self._bag.p_values(scores, ties=1 - self._ties.random(len(scores)))
        self._log_capital, log_martingale = play(self._log_capital, log_payoffs(p_values), self._steps)
        reached = np.flatnonzero(log_martingale >= math.log(self.alarm_level))
        if self._alarm_step is None and len(reached):
            self._alarm_step = self._steps + 1 + int(reached[0])
        self._log_martingale = float(log_martingale[-1])
        self._steps += len(scores)
        self._flags.extend((scores[-self.window :] > self.ood_threshold).tolist())
        return log_martingale

    def status(self) -> DriftStatus:
        """Where the stream stands now."""
        rate, interval = None, (0.0, 1.0)
        if self._flags:
            rate = sum(self._flags) / len(self._flags)
            exact = binomtest(sum(self._flags), len(self._flags)).proportion_ci(0.95, method="exact")
            interval = (float(exact.low), float(exact.high))
        return DriftStatus(self._steps, self._log_martingale, self._alarm_step, rate, interval)

    def state_dict(self) -> dict[str, Any]:
        """Everything the monitor needs to go on after a restart, as plain values that JSON can hold."""
        return {
            **self._settings(),
            "steps": self._steps,
            "counts": self._bag.counts.tolist(),
            "log_capital": self._log_capital.tolist(),
            "log_martingale": self._log_martingale,
            "alarm_step": self._alarm_step,
            "flags": "".join("01"[flag] for flag in self._flags),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on exactly where the monitor that gave `state` stood; it must have the same settings."""
        if missing := self.state_dict().keys() - state.keys():
            raise InputError(f"the state lacks {sorted(missing)}: start a new stream, or find the whole state")
        for name, value in self._settings().items():
            if state[name] != value:
                raise InputError(f"the state was saved with different {name}: start a new stream, or restore the setting")
        self._steps = int(state["steps"])
        self._bag.counts = np.array(state["counts"], dtype=np.int64)
        self._log_capital = np.array(state["log_capital"], dtype=np.float64)
        self._log_martingale = float(state["log_martingale"])
        self._alarm_step = state["alarm_step"]
        self._flags = deque((flag == "1" for flag in state["flags"]), maxlen=self.window)
        self._ties = np.random.Generator(np.random.PCG64(self.seed).advance(self._steps))  # one number was drawn a step

    def _settings(self) -> dict[str, Any]:
        return {
            "edges": self._bag.edges.tolist(),
            "ood_threshold": self.ood_threshold,
            "alarm_level": self.alarm_level,
            "window": self.window,
            "seed": self.seed,
        }


def _array(values: Tensor | Numbers, name: str) -> NDArray[np.float64]:
    array: NDArray[np.float64] = as_floating(values, name).cpu().double().numpy()
    if array.ndim != 1:
        raise InputError(f"{name} have shape {list(array.shape)}: pass a list of numbers, [n]")
    return array
