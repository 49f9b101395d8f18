"""How certain a figure is: exact binomial intervals of rates, bootstrap intervals of the OOD figures."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import betaincinv, betaln

from besnn.checks import check_fractions
from besnn.errors import InputError
from besnn.evaluation.checks import IntArray
from besnn.evaluation.metrics import OODFigures, dense_ranks, figures_of_counts


class Interval(NamedTuple):
    """A confidence interval."""

    low: float
    high: float


def binomial_interval(successes: int, trials: int, level: float = 0.95) -> Interval:
    """Compute the Clopper–Pearson interval of a rate, which covers the true rate with probability at least ``level``.

    >>> low, high = binomial_interval(5, 100)
    >>> round(low, 4), round(high, 4)
    (0.0164, 0.1128)
    """
    check_fractions(level=level)
    if not 0 <= successes <= trials or trials < 1:
        raise InputError(f"{successes} successes in {trials} trials: give 0 ≤ successes ≤ trials, trials ≥ 1")
    tail = (1 - level) / 2
    low = betaincinv(successes, trials - successes + 1, tail) if successes else 0.0
    high = betaincinv(successes + 1, trials - successes, 1 - tail) if successes < trials else 1.0
    return Interval(float(low), float(high))


def false_alarm_range(calibrated: int, rank: int, inputs: int, level: float = 0.95) -> tuple[int, int]:
    """Compute how many false alarms chance explains among new inputs like those of the calibration.

    The share of such inputs above the `rank`-th smallest of n calibration scores is itself random, Beta(n + 1 − rank, rank).
    So their number is beta-binomial, exactly, and spreads more than a binomial: few calibration inputs add noise of their own.
    Returns the smallest counts that are reached with probability (1 − level) / 2 and (1 + level) / 2. Where scores tie, there
    are fewer alarms.

    >>> false_alarm_range(calibrated=199, rank=190, inputs=600)
    (12, 54)
    """
    check_fractions(level=level)
    alarms = np.arange(inputs + 1)
    above, below = calibrated + 1 - rank, rank
    log_ways = -np.log(inputs + 1) - betaln(alarms + 1, inputs - alarms + 1)
    log_share = betaln(alarms + above, inputs - alarms + below) - betaln(above, below)
    reached = np.cumsum(np.exp(log_ways + log_share))
    low, high = np.searchsorted(reached, [(1 - level) / 2, (1 + level) / 2])
    return int(low), int(min(high, inputs))


def ood_intervals(
    in_scores: npt.ArrayLike, out_scores: npt.ArrayLike, resamples: int = 1000, level: float = 0.95, seed: int = 0
) -> dict[str, Interval]:
    """Compute bootstrap percentile intervals of all five figures of `ood_metrics`, in one pass.

    >>> ood_intervals([0.1, 0.2, 0.3], [0.7, 0.8, 0.9], resamples=50)["auroc"]
    Interval(low=1.0, high=1.0)
    """
    check_fractions(level=level)
    if resamples < 1:
        raise InputError(f"resamples={resamples}: give at least 1, and 200 or more for a stable interval")
    # The scores are sorted once: a resample changes only how often each distinct score occurs.
    in_ranks, out_ranks = dense_ranks(in_scores, out_scores)
    distinct = 1 + max(in_ranks.max(), out_ranks.max())
    generator = np.random.default_rng(seed)

    def resampled(ranks: IntArray) -> IntArray:
        return np.bincount(ranks[generator.integers(0, ranks.size, size=ranks.size)], minlength=distinct)

    drawn = [tuple(figures_of_counts(resampled(in_ranks), resampled(out_ranks)).values()) for _ in range(resamples)]
    tail = 100 * (1 - level) / 2
    low, high = np.percentile(np.array(drawn, dtype=np.float64), [tail, 100 - tail], axis=0).tolist()
    return {name: Interval(*ends) for name, *ends in zip(OODFigures.__annotations__, low, high, strict=True)}
