"""Conformal prediction: from held-out in-distribution scores to p-values and decisions with a stated false-alarm rate."""

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any, NamedTuple, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from besnn.checks import Numbers, as_floating, as_integers, check_fractions, is_fraction, like
from besnn.errors import InputError

FEW_SCORES = 100
"""With fewer calibration scores a threshold is so uncertain that messages say so."""

Groups = Tensor | Sequence[int] | NDArray[Any]


@overload
def p_values(scores: Tensor, calibration_scores: Tensor | Numbers) -> Tensor: ...
@overload
def p_values(scores: Numbers, calibration_scores: Tensor | Numbers) -> NDArray[np.float64]: ...
def p_values(scores: Tensor | Numbers, calibration_scores: Tensor | Numbers) -> Tensor | NDArray[np.float64]:
    """Compute conformal p-values (1 + #{calibration scores ≥ score}) / (n + 1).

    Scores may have any shape, calibration scores are `[n]`; p-values have the shape, type and device of the scores.

    >>> p_values([0.0, 98.0, 200.0], range(99))
    array([1.  , 0.02, 0.01])
    """
    return _p_values(scores, _sorted_calibration_scores(calibration_scores))


def _p_values(scores: Tensor | Numbers, ordered: Tensor) -> Tensor | NDArray[np.float64]:
    query = as_floating(scores, "scores")
    dtype = torch.promote_types(query.dtype, ordered.dtype)
    smaller = torch.searchsorted(ordered.to(query.device, dtype), query.to(dtype).contiguous())
    return like(p_value_of_count(len(ordered) - smaller, len(ordered), query.dtype), scores)


def p_value_of_count(at_least: Tensor, n: int, dtype: torch.dtype) -> Tensor:
    """Turn the number of calibration scores, out of n, that are at least as high as a score into its p-value."""
    return (1 + at_least).to(dtype) / (n + 1)


def exceeds(scores: Tensor, threshold: Tensor) -> Tensor:
    """Apply the decision rule, score > τ, which is p ≤ α without `delta`; at ties, score ≥ τ would break the guarantee."""
    dtype = torch.promote_types(scores.dtype, threshold.dtype)
    return scores.to(dtype) > threshold.to(scores.device, dtype)


class ConformalThreshold:
    """The threshold τ, and p-values, from n calibration scores that were held out from training.

    For inputs exchangeable with the calibration set P(false alarm) ≤ α, averaged over the draw of the calibration set.
    With `delta` the bound holds for this calibration set: with probability 1 − δ over its draw, the false-alarm rate is ≤ α.

    Args:
        scores: `[n]` finite calibration scores, higher = more out-of-distribution.
        alpha: the false-alarm rate α.
        delta: δ of the stronger guarantee, or None for the average one.

    Attributes:
        threshold: τ, the `rank`-th smallest score; an input is out-of-distribution if and only if its score exceeds it.

    >>> calibration = ConformalThreshold(range(99), alpha=0.05)
    >>> calibration.threshold
    94.0
    >>> calibration.p_values([0.0, 94.0, 95.0, 200.0])
    array([1.  , 0.06, 0.05, 0.01])
    >>> calibration.is_ood([94.0, 95.0])
    array([False,  True])
    """

    def __init__(self, scores: Tensor | Numbers, alpha: float = 0.05, delta: float | None = None) -> None:
        self.alpha = alpha
        self.delta = delta
        self.scores = _sorted_calibration_scores(scores)
        self.rank = conformal_rank(len(self.scores), alpha, delta)
        self.threshold = float(self.scores[self.rank - 1])
        if self.scores[0] == self.scores[-1]:
            raise InputError(f"all calibration scores equal {self.threshold:g}: check the model, its score and the data")

    @overload
    def p_values(self, scores: Tensor) -> Tensor: ...
    @overload
    def p_values(self, scores: Numbers) -> NDArray[np.float64]: ...
    def p_values(self, scores: Tensor | Numbers) -> Tensor | NDArray[np.float64]:
        """Compute conformal p-values with the shape, type and device of the scores."""
        return _p_values(scores, self.scores)

    @overload
    def is_ood(self, scores: Tensor) -> Tensor: ...
    @overload
    def is_ood(self, scores: Numbers) -> NDArray[np.bool_]: ...
    def is_ood(self, scores: Tensor | Numbers) -> Tensor | NDArray[np.bool_]:
        """Decide whether each score exceeds τ, with the shape, type and device of the scores."""
        return like(exceeds(as_floating(scores, "scores"), self.scores[self.rank - 1]), scores)


def conformal_rank(n: int, alpha: float, delta: float | None = None) -> int:
    """Return the rank of the threshold among n sorted calibration scores.

    Without `delta` it is ⌈(n+1)(1−α)⌉. With `delta` it is the smallest rank j, no smaller than that, for which
    P(Beta(j, n+1−j) ≤ 1−α) ≤ δ: the share of new scores at or below the j-th smallest of n is Beta(j, n+1−j) when
    scores are continuous, and larger when they tie.
    """
    least = least_scores(alpha, delta)
    exact_alpha = Fraction(repr(float(alpha)))  # the decimal as written: in floats 100 · (1 − 0.05) exceeds 95
    if n < least:
        wish = f"alpha={alpha}" if delta is None else f"alpha={alpha} with delta={delta}"
        raise InputError(f"{n} calibration scores are too few for {wish}: provide at least {least}, or raise alpha")
    rank = n + 1 - math.floor(exact_alpha * (n + 1))
    if delta is not None:
        from scipy.special import betainc  # slow to import, and seldom needed

        ranks = np.arange(rank, n + 1)
        failure = betainc(ranks, n + 1 - ranks, 1 - alpha)
        rank += int(np.argmax(failure <= delta * (1 + 1e-9)))  # the last rank passes, up to rounding
    return rank


def least_scores(alpha: float, delta: float | None = None) -> int:
    """Return the smallest number of calibration scores that a false-alarm rate needs.

    Example:
        >>> least_scores(0.05), least_scores(0.05, delta=0.1)
        (19, 45)
    """
    if not is_fraction(alpha):
        raise InputError(f"alpha={alpha!r} is not a false-alarm rate: choose it between 0 and 1, such as 0.05")
    if delta is not None and not is_fraction(delta):
        raise InputError(f"delta={delta!r} is not a probability of failure: choose it between 0 and 1, such as 0.1")
    least = math.ceil(1 / Fraction(repr(float(alpha)))) - 1
    return least if delta is None else max(least, math.ceil(math.log(delta) / math.log1p(-alpha)))


class Interval(NamedTuple):
    """A confidence interval."""

    low: float
    high: float


def binomial_interval(successes: int, trials: int, level: float = 0.95) -> Interval:
    """Compute the Clopper–Pearson interval of a rate, which covers the true rate with probability at least `level`.

    >>> low, high = binomial_interval(5, 100)
    >>> round(low, 4), round(high, 4)
    (0.0164, 0.1128)
    """
    from scipy.special import betaincinv  # slow to import

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
    from scipy.special import betaln  # slow to import

    check_fractions(level=level)
    alarms = np.arange(inputs + 1)
    above, below = calibrated + 1 - rank, rank
    log_ways = -np.log(inputs + 1) - betaln(alarms + 1, inputs - alarms + 1)
    log_share = betaln(alarms + above, inputs - alarms + below) - betaln(above, below)
    reached = np.cumsum(np.exp(log_ways + log_share))
    low, high = np.searchsorted(reached, [(1 - level) / 2, (1 + level) / 2])
    return int(low), int(min(high, inputs))


class MondrianThreshold:
    """One `ConformalThreshold` per group, so that the guarantee holds within each group.

    Groups are integers `[n]`. The group must be a function of the input alone, such as the *predicted* class.

    >>> calibration = MondrianThreshold([*range(9), *range(100, 109)], [0] * 9 + [1] * 9, alpha=0.1)
    >>> calibration.is_ood([50.0, 50.0], [0, 1])
    array([ True, False])
    """

    def __init__(self, scores: Tensor | Numbers, groups: Groups, alpha: float = 0.05, delta: float | None = None) -> None:
        values = as_floating(scores, "calibration scores")
        members = _checked_groups(values, groups)
        self.thresholds: dict[int, ConformalThreshold] = {}
        for group in sorted(set(members.tolist())):
            try:
                self.thresholds[group] = ConformalThreshold(values[members == group], alpha, delta)
            except InputError as error:
                raise InputError(f"group {group}: {error}") from None
        if not self.thresholds:
            raise InputError("there are no calibration scores: provide scores of held-out in-distribution inputs")

    @overload
    def p_values(self, scores: Tensor, groups: Groups) -> Tensor: ...
    @overload
    def p_values(self, scores: Numbers, groups: Groups) -> NDArray[np.float64]: ...
    def p_values(self, scores: Tensor | Numbers, groups: Groups) -> Tensor | NDArray[np.float64]:
        """Compute p-values `[batch]`, each against the calibration scores of its own group."""
        values = as_floating(scores, "scores")
        return like(self._by_group(values, groups, ConformalThreshold.p_values, values.dtype), scores)

    @overload
    def is_ood(self, scores: Tensor, groups: Groups) -> Tensor: ...
    @overload
    def is_ood(self, scores: Numbers, groups: Groups) -> NDArray[np.bool_]: ...
    def is_ood(self, scores: Tensor | Numbers, groups: Groups) -> Tensor | NDArray[np.bool_]:
        """Decide whether each score exceeds the threshold of its group, `[batch]`."""
        values = as_floating(scores, "scores")
        return like(self._by_group(values, groups, ConformalThreshold.is_ood, torch.bool), scores)

    def _by_group(
        self, values: Tensor, groups: Groups, answer: Callable[[ConformalThreshold, Tensor], Tensor], dtype: torch.dtype
    ) -> Tensor:
        members = _checked_groups(values, groups)
        result = torch.empty_like(values, dtype=dtype)
        for group in sorted(set(members.tolist())):
            if group not in self.thresholds:
                raise InputError(f"group {group} has no threshold: calibrate with scores of it; known: {[*self.thresholds]}")
            inside = members == group
            result[inside] = answer(self.thresholds[group], values[inside])
        return result


@overload
def benjamini_hochberg(p_values: Tensor, q: float) -> Tensor: ...
@overload
def benjamini_hochberg(p_values: Numbers, q: float) -> NDArray[np.bool_]: ...
def benjamini_hochberg(p_values: Tensor | Numbers, q: float) -> Tensor | NDArray[np.bool_]:
    """Select p ≤ p₍ₖ₎ of `[batch]`, with k the largest rank such that p₍ₖ₎ ≤ k q / batch; return the mask `[batch]`.

    The expected share of false selections is ≤ q (Benjamini & Hochberg 1995), also for conformal p-values that share one
    calibration set (Bates et al. 2023).

    >>> benjamini_hochberg([0.01, 0.04, 0.03, 0.9], q=0.1)
    array([ True,  True,  True, False])
    """
    if not is_fraction(q):
        raise InputError(f"q={q!r} is not a false-discovery rate: choose it between 0 and 1, such as 0.1")
    p = as_floating(p_values, "p-values")
    if p.ndim != 1:
        raise InputError(f"p-values have shape {list(p.shape)}: pass one per input, [batch]")
    if bool(((p < 0) | (p > 1)).any()):
        raise InputError(f"p-value {p[(p < 0) | (p > 1)][0]:g} is out of range: p-values lie between 0 and 1")
    return like(benjamini_hochberg_mask(p, q), p_values)


def benjamini_hochberg_mask(p: Tensor, q: float) -> Tensor:
    """Return the mask of `benjamini_hochberg` for checked p-values `[batch]`, in operations that export."""
    ordered = p.sort().values
    passing = ordered * p.shape[0] <= torch.ones_like(p).cumsum(dim=0) * q
    return p <= torch.cat([torch.where(passing, ordered, -1.0), ordered.new_full((1,), -1.0)]).amax(dim=0)


def _sorted_calibration_scores(scores: Tensor | Numbers) -> Tensor:
    values = as_floating(scores, "calibration scores")
    if values.ndim != 1:
        raise InputError(f"calibration scores have shape {list(values.shape)}: pass one score per input, [n]")
    if len(values) == 0:
        raise InputError("there are no calibration scores: provide scores of held-out in-distribution inputs")
    if not bool(torch.isfinite(values).all()):
        raise InputError(f"calibration scores contain {values[~torch.isfinite(values)][0]:g}: each score must be finite")
    return values.sort().values


def _checked_groups(values: Tensor, groups: Groups) -> Tensor:
    members = as_integers(groups, "groups").to(values.device)
    if values.ndim != 1 or members.shape != values.shape:
        raise InputError(f"scores have shape {list(values.shape)} and groups {list(members.shape)}: pass one of each per input")
    return members
