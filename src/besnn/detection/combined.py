"""Combine several scores: each says how surprising an input is, and the surprises are added."""

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from besnn.checks import as_floating
from besnn.errors import InputError

UPPER_SHARE = 0.05  # of the reference scores: the slope beyond the largest comes from these
LEAST_UPPER = 10  # but at least this many, up to a third of them: the excess of one or two says little
RESOLUTION = 1 / 256  # smallest distance of two knots, as a share of the range of the middle 90 % of reference scores
ROUNDING = 1e-5  # smallest resolution, as a share of the largest reference score
FAR = math.log(6)  # the surprise beyond which the pixels of an image count, that of one known input in six; chosen, like the
FAR_WEIGHT = 2.0  # weight of the rest, on the development tasks of benchmarks/first_hour_tasks.py
SMALLEST = 1e-30  # smallest resolution of all: a number divided by less may be infinite


class TailProbability:
    """The surprise −log p of a score, with p the share of `reference` scores `[n]` that are at least as high.

    Between knots −log p is interpolated. Reference scores that nearly tie make one knot, because otherwise a rounding error
    would be a jump in surprise. Beyond the last knot the tail is exponential, with the mean excess of the highest 5 % (ten, if
    that is more) as its scale: this tells far outliers apart, whose p-values would all tie. With `beyond`, only what exceeds
    it counts, and `FAR_WEIGHT` times.
    """

    def __init__(self, reference: Tensor, beyond: float = 0.0) -> None:
        self.beyond = beyond
        self.reference = as_floating(reference, "reference scores").sort().values
        n = len(self.reference) if self.reference.ndim == 1 else 0
        if n < 2 or not bool(torch.isfinite(self.reference).all()) or self.reference[0] == self.reference[-1]:
            raise InputError("reference scores must be finite, [n] and not all equal: score held-out in-distribution inputs")
        gap = _resolution(self.reference)
        self.knots = _distinct(self.reference, gap)
        at_least = n - torch.searchsorted(self.reference, self.knots)
        self.surprises = -((1 + at_least).to(self.knots.dtype) / (n + 1)).log()
        upper = self.reference[-1 - max(math.ceil(UPPER_SHARE * n), min(LEAST_UPPER, n // 3)) :]
        # Where the highest scores tie they have no excess: take the mean slope of the whole range instead.
        whole = (self.knots[-1] - self.knots[0]) / self.surprises[-1]
        self.scale = torch.where(upper[-1] > upper[0], (upper[1:] - upper[0]).mean(), whole).clamp_min(gap)

    @property
    def unnoticed(self) -> float:
        """The largest knot of no surprise in excess of `beyond`: the exact value of a smaller score does not matter."""
        return float(self.knots[self.surprises <= self.beyond][-1])

    def surprise(self, scores: Tensor) -> Tensor:
        """Compute −log p: ≥ 0, continuous, and rising beyond the largest reference score."""
        query = as_floating(scores, "scores")
        dtype = torch.promote_types(query.dtype, self.knots.dtype)  # knots that round to one would divide by zero
        knots, surprises, scale = (x.to(query.device, dtype) for x in (self.knots, self.surprises, self.scale))
        upper = torch.searchsorted(knots, query.to(dtype).contiguous())
        surprise = _interpolate(query.to(dtype), upper, knots, surprises, scale)
        return _excess(surprise, self.beyond).to(query.dtype)

    def network(self) -> nn.Module:
        """Return `surprise` as a network of scores `[batch]`, in operations that export."""
        return _TailNetwork(self)


class _TailNetwork(nn.Module):
    knots: Tensor
    surprises: Tensor
    scale: Tensor

    def __init__(self, tail: TailProbability) -> None:
        super().__init__()
        self.beyond = tail.beyond
        for name in ("knots", "surprises", "scale"):
            self.register_buffer(name, getattr(tail, name).float())

    def forward(self, scores: Tensor) -> Tensor:
        upper = (self.knots < scores[:, None]).sum(dim=1)  # ONNX has no binary search
        return _excess(_interpolate(scores, upper, self.knots, self.surprises, self.scale), self.beyond)


def _interpolate(scores: Tensor, upper: Tensor, knots: Tensor, surprises: Tensor, scale: Tensor) -> Tensor:
    """Interpolate the surprises between knots; `upper` is the number of knots below each score."""
    upper = upper.clamp(1, len(knots) - 1)
    share = ((scores - knots[upper - 1]) / (knots[upper] - knots[upper - 1])).clamp(0, 1)
    inside = torch.lerp(surprises[upper - 1], surprises[upper], share)
    return inside + (scores - knots[-1]).clamp_min(0) / scale


def _excess(surprise: Tensor, beyond: float) -> Tensor:
    return FAR_WEIGHT * (surprise - beyond).clamp_min(0) if beyond else surprise


def _resolution(ordered: Tensor) -> float:
    low, high = ordered[len(ordered) // 20], ordered[-1 - len(ordered) // 20]
    span = high - low if high > low else ordered[-1] - ordered[0]
    return max(RESOLUTION * float(span), ROUNDING * float(ordered.abs().max()), SMALLEST)


def _distinct(ordered: Tensor, gap: float) -> Tensor:
    """Return values of a sorted `[n]` that are at least `gap` apart, among them the first and the last; at least two."""
    first, *others, last = torch.unique_consecutive(ordered).tolist()
    kept = [first]
    for value in others:
        if value - kept[-1] >= gap and last - value >= gap:
            kept.append(value)
    return ordered.new_tensor([*kept, max(last, first + gap)])


class CombinedScore:
    """Fisher's combination Σ −log p of several scores, with p the tail probability of each among reference scores.

    An entropy detects inputs between the classes, a density inputs away from all data. As −log p they share one scale,
    whatever their units. No score can hide what another one sees, since a surprise is never negative. Calibrate the combination
    like any other score, with `ConformalThreshold`.

    Args:
        reference: `{name: [n]}`, scores of in-distribution inputs, none of which was used for training or is used for
            calibration; the guarantee then holds no matter how the scores depend on each other.
        far: scores that recognise only what is far from all data, each with the surprise beyond which it counts, such as `FAR`:
            among ordinary inputs they would add nothing but noise.

    >>> ordinary = torch.arange(99.0)
    >>> combined = CombinedScore({"entropy": ordinary, "density": ordinary})
    >>> combined.score({"entropy": torch.tensor([50.0, 98.0, 50.0]), "density": torch.tensor([50.0, 98.0, 150.0])})
    tensor([ 1.3863,  7.8240, 14.0597])
    """

    def __init__(self, reference: Mapping[str, Tensor], far: Mapping[str, float] | None = None) -> None:
        if not reference:
            raise InputError("there are no reference scores: pass {name: scores of held-out in-distribution inputs}")
        # In one order, whatever the file's: the last digit of a sum of three or more depends on it.
        self.tails = {name: TailProbability(scores, (far or {}).get(name, 0.0)) for name, scores in sorted(reference.items())}
        self.far = {name: tail.beyond for name, tail in self.tails.items() if tail.beyond}

    def score(self, scores: Mapping[str, Tensor]) -> Tensor:
        """Combine scores `{name: [batch]}`, with the reference's names, into one score `[batch]`, ≥ 0."""
        if scores.keys() != self.tails.keys():
            raise InputError(f"scores are {sorted(scores)}, the reference has {sorted(self.tails)}: pass the same ones")
        return torch.stack([tail.surprise(scores[name]) for name, tail in self.tails.items()]).sum(dim=0)

    def state(self) -> dict[str, Tensor]:
        """Return the sorted reference scores by name, from which the class makes the same combination."""
        return {name: tail.reference for name, tail in self.tails.items()}
