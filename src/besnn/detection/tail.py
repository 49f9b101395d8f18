"""How surprising a score is among reference scores: −log of a smooth tail probability."""

import math

import torch
from torch import Tensor

from besnn.detection.arrays import as_floating
from besnn.errors import InputError

UPPER_SHARE = 0.05  # of the reference scores: the slope beyond the largest comes from these
RESOLUTION = 1 / 256  # of the range that 90 % of the reference scores span: the least distance of two knots
ROUNDING = 1e-5  # of the largest reference score: the least resolution
SMALLEST = 1e-30  # the least resolution of all: a number divided by less may be infinite


class EmpiricalTail:
    """−log p(score), p being the share of reference scores at least as high.

    Between reference scores −log p is interpolated. Those that nearly tie count as one, for otherwise a rounding error in a
    score would be a leap in its surprise (an entropy that saturates is full of them). Beyond the largest it goes on as an
    exponential tail, with the mean excess of the highest 5 % as its scale, so that far outliers are told apart: as p-values
    they would all tie.

    Args:
        reference: `[n]` finite scores, n ≥ 2, not all equal.

    Attributes:
        reference: the scores, sorted.
        knots: the ones among them that are distinct to the resolution.
        surprises: −log p at the knots.
        scale: of the exponential tail beyond the last knot.

    Example:
        >>> tail = EmpiricalTail(torch.arange(99.0))
        >>> tail.surprise(torch.tensor([-5.0, 50.0, 98.0, 150.0]))
        tensor([ 0.0000,  0.6931,  3.9120, 21.2454])
    """

    def __init__(self, reference: Tensor) -> None:
        self.reference = as_floating(reference, "reference scores").sort().values
        n = len(self.reference) if self.reference.ndim == 1 else 0
        if n < 2 or not bool(torch.isfinite(self.reference).all()) or self.reference[0] == self.reference[-1]:
            raise InputError("reference scores must be finite, [n] and not all equal: score held-out in-distribution inputs")
        gap = _resolution(self.reference)
        self.knots = _apart(self.reference, gap)
        at_least = n - torch.searchsorted(self.reference, self.knots)
        self.surprises = -((1 + at_least).to(self.knots.dtype) / (n + 1)).log()
        upper = self.reference[-1 - math.ceil(UPPER_SHARE * n) :]
        # Where the highest scores tie they have no excess: take the mean slope of the whole range instead.
        whole = (self.knots[-1] - self.knots[0]) / self.surprises[-1]
        self.scale = torch.where(upper[-1] > upper[0], (upper[1:] - upper[0]).mean(), whole).clamp_min(gap)

    def surprise(self, scores: Tensor) -> Tensor:
        """−log p: of the scores' shape and device, ≥ 0, continuous, and rising beyond the largest reference score."""
        query = as_floating(scores, "scores")
        dtype = torch.promote_types(query.dtype, self.knots.dtype)  # knots that round to one would divide by zero
        knots, surprises, scale = (x.to(query.device, dtype) for x in (self.knots, self.surprises, self.scale))
        upper = torch.searchsorted(knots, query.to(dtype).contiguous()).clamp(1, len(knots) - 1)
        share = (query - knots[upper - 1]) / (knots[upper] - knots[upper - 1])
        inside = torch.lerp(surprises[upper - 1], surprises[upper], share.clamp(0, 1))
        return (inside + (query - knots[-1]).clamp_min(0) / scale).to(query.dtype)


def _resolution(ordered: Tensor) -> float:
    low, high = ordered[len(ordered) // 20], ordered[-1 - len(ordered) // 20]
    span = high - low if high > low else ordered[-1] - ordered[0]
    return max(RESOLUTION * float(span), ROUNDING * float(ordered.abs().max()), SMALLEST)


def _apart(ordered: Tensor, gap: float) -> Tensor:
    """Values of a sorted `[n]` no closer together than `gap`, first and last among them; two that are so far apart at least."""
    first, *others, last = torch.unique_consecutive(ordered).tolist()
    kept = [first]
    for value in others:
        if value - kept[-1] >= gap and last - value >= gap:
            kept.append(value)
    return ordered.new_tensor([*kept, max(last, first + gap)])
