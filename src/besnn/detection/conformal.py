"""Split conformal thresholds: from held-out in-distribution scores to decisions with a stated false-alarm rate."""

import math
from fractions import Fraction
from typing import overload

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import betainc
from torch import Tensor

from besnn.detection.arrays import Numbers, as_floating, like
from besnn.errors import InputError


class ConformalThreshold:
    """The threshold τ, and p-values, from n calibration scores that were held out from training.

    For inputs exchangeable with the calibration set P(false alarm) ≤ α, averaged over the draw of the calibration set.
    With `delta` the bound holds for the set at hand: with probability 1 − δ over its draw, its false-alarm rate is ≤ α.

    An input is out-of-distribution iff score > τ, which is exactly p ≤ α (without `delta`). For continuous scores this
    is the same as score ≥ τ; where scores tie, only this form keeps the guarantee.

    Args:
        scores: `[n]` finite calibration scores, higher = more out-of-distribution.
        alpha: the false-alarm rate α.
        delta: δ of the stronger guarantee, or None for the average one.

    Attributes:
        scores: the calibration scores, sorted, `[n]`.
        rank: τ is the rank-th smallest score.
        threshold: τ.

    Example:
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
        """Conformal p-values (1 + #{calibration scores ≥ score}) / (n + 1), of the scores' shape, kind and device."""
        query = as_floating(scores, "scores")
        return like((1 + self._count_at_least(query)).to(query.dtype) / (len(self.scores) + 1), scores)

    @overload
    def is_ood(self, scores: Tensor) -> Tensor: ...
    @overload
    def is_ood(self, scores: Numbers) -> NDArray[np.bool_]: ...
    def is_ood(self, scores: Tensor | Numbers) -> Tensor | NDArray[np.bool_]:
        """Whether score > τ, of the scores' shape, kind and device."""
        # Decided on counts, which are exact: scores of another precision than τ's then decide as their p-values do.
        return like(self._count_at_least(as_floating(scores, "scores")) <= len(self.scores) - self.rank, scores)

    def _count_at_least(self, query: Tensor) -> Tensor:
        """#{calibration scores ≥ score} for each score of the query."""
        dtype = torch.promote_types(query.dtype, self.scores.dtype)
        smaller = torch.searchsorted(self.scores.to(query.device, dtype), query.to(dtype).contiguous())
        return len(self.scores) - smaller


def conformal_rank(n: int, alpha: float, delta: float | None = None) -> int:
    """The rank of the threshold among n sorted calibration scores.

    Without `delta` it is ⌈(n+1)(1−α)⌉. With `delta` it is the smallest rank j, no smaller than that, for which
    P(Beta(j, n+1−j) ≤ 1−α) ≤ δ: the share of new scores at or below the j-th smallest of n is Beta(j, n+1−j) when
    scores are continuous, and larger when they tie.

    Example:
        >>> conformal_rank(99, alpha=0.05), conformal_rank(99, alpha=0.05, delta=0.1)
        (95, 98)
    """
    if not 0 < alpha < 1:
        raise InputError(f"alpha={alpha} is not a false-alarm rate: choose it between 0 and 1, such as 0.05")
    if delta is not None and not 0 < delta < 1:
        raise InputError(f"delta={delta} is not a probability of failure: choose it between 0 and 1, such as 0.1")
    exact_alpha = Fraction(repr(float(alpha)))  # the decimal that was written: in floats 100 · (1 − 0.05) exceeds 95
    least = math.ceil(1 / exact_alpha) - 1
    if delta is not None:
        least = max(least, math.ceil(math.log(delta) / math.log1p(-alpha)))
    if n < least:
        wish = f"alpha={alpha}" if delta is None else f"alpha={alpha} with delta={delta}"
        raise InputError(f"{n} calibration scores are too few for {wish}: provide at least {least}, or raise alpha")
    rank = n + 1 - math.floor(exact_alpha * (n + 1))
    if delta is not None:
        ranks = np.arange(rank, n + 1)
        failure = betainc(ranks, n + 1 - ranks, 1 - alpha)
        rank += int(np.argmax(failure <= delta * (1 + 1e-9)))  # the last rank passes, but for round-off
    return rank


def _sorted_calibration_scores(scores: Tensor | Numbers) -> Tensor:
    values = as_floating(scores, "calibration scores")
    if values.ndim != 1:
        raise InputError(f"calibration scores have shape {list(values.shape)}: pass one score for each input, [n]")
    if len(values) == 0:
        raise InputError("there are no calibration scores: provide scores of held-out in-distribution inputs")
    if not bool(torch.isfinite(values).all()):
        raise InputError(f"calibration scores hold {values[~torch.isfinite(values)][0]:g}: every one must be finite")
    return values.sort().values
