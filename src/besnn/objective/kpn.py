"""The local Gaussian volume of Lombardi & Pant (2016), "Nonparametric k-nearest-neighbor entropy estimator".

Kozachenko and Leonenko take the density as constant out to the k-th neighbour. In many dimensions that ball is large, and the
density changes much within it. Here the density is f, an unnormalised Gaussian fitted to the p nearest neighbours, over the
max-norm box that reaches the k-th one. The ball's volume becomes (∫_box f) / f(x): what the box's volume would be, were the
density all over it as at x. With a diagonal covariance the integral is a product of differences of error functions.
"""

import math

import torch
from torch import Tensor

from besnn.objective.kernel import log1mexp
from besnn.objective.neighbours import SMALLEST_DISTANCE, nearest_neighbours, offset_to

FLATTEST = 1e-6
"""The smallest standard deviation of a fitted Gaussian, in units of its neighbourhood's half-width."""


def log_gaussian_volume(points: Tensor, groups: Tensor, k: int, p: int) -> Tensor:
    """Log of (∫ f over the box) / f(x) at each point, f fitted to the point's neighbours.

    Args:
        points: `[..., n, d]`, n > k.
        groups: `[..., n]`: neighbours are sought in a point's own group.
        k: which neighbour the box reaches.
        p: how many neighbours the Gaussian is fitted to; all of the group where it has fewer.

    Returns:
        `[..., n]`; finite but meaningless for a point whose group has k points or fewer.
    """
    neighbours, available = nearest_neighbours(points, groups, min(p, points.shape[-2] - 1), norm=math.inf)
    half_width = offset_to(points, neighbours[..., k - 1]).abs().amax(-1, keepdim=True).clamp(min=SMALLEST_DISTANCE)
    offset, deviation = _fit_gaussian(points, neighbours, available)
    by_dimension = deviation.log() + log_box_integral(offset / deviation, half_width / deviation)
    return by_dimension.sum(-1)


def _fit_gaussian(points: Tensor, neighbours: Tensor, available: Tensor) -> tuple[Tensor, Tensor]:
    """Each point's offset from its neighbours' mean, and their standard deviation by dimension: both `[..., n, d]`.

    The moments are products of a 0/1 matrix with the points, which spares the `[n, p, d]` tensor of neighbours. The variance is
    then a difference of sums, so these run in float64, where neither cancellation nor reduced matrix-product precision hurts.
    """
    n = points.shape[-2]
    fitted = torch.arange(neighbours.shape[-1], device=points.device) < available[..., None]
    weights = points.new_zeros((*neighbours.shape[:-1], n), dtype=torch.float64).scatter(-1, neighbours, fitted.double())
    count = available[..., None].clamp(min=1).double()
    centred = (points - points.mean(-2, keepdim=True).detach()).double()
    mean = weights @ centred / count
    variance = (weights @ centred.square() / count - mean.square()) * (count / (count - 1).clamp(min=1))
    # True moments lie within these bounds. Rounded ones may not where neighbours coincide, in all dimensions or in one.
    farthest = neighbours.gather(-1, (available[..., None] - 1).clamp(min=0)).squeeze(-1)
    extent = offset_to(points.detach(), farthest).abs().amax(-1, keepdim=True).clamp(min=SMALLEST_DISTANCE).double()
    offset = (centred - mean).clamp(-2 * extent, 2 * extent)
    deviation = variance.clamp((FLATTEST * extent).square(), (2 * extent).square()).sqrt()
    return offset.to(points.dtype), deviation.to(points.dtype)


def log_box_integral(z: Tensor, a: Tensor) -> Tensor:
    """Log of ∫_{−a}^{a} exp(−z u − u²/2) du: a Gaussian's integral over a box, relative to its value at the box's centre.

    Args:
        z: the box's centre, in standard deviations from the Gaussian's mean; any shape. Boxes that lie wholly beyond 40 of
            them are not accurate.
        a: the box's half-width in standard deviations, > 0; broadcasts with `z`.

    Returns:
        The broadcast shape of `z` and `a`.

    >>> whole_line = log_box_integral(torch.tensor(0.0), torch.tensor(50.0)).exp().item()
    >>> math.isclose(whole_line, math.sqrt(2 * math.pi), rel_tol=1e-6)
    True
    """
    z, a = torch.broadcast_tensors(z.abs(), a)  # the integral is even in z
    narrow = a * (1 + z) < 0.05
    # A narrow box: the series 2 Σ_m He_2m(z) a^(2m+1) / (2m+1)!, because the difference below would cancel.
    # torch.where drops the other branch but not its gradient, so each branch sees only arguments it is finite for.
    z_narrow, a_narrow = torch.where(narrow, z, 0.0), torch.where(narrow, a, 0.05)
    z2, a2 = z_narrow.square(), a_narrow.square()
    series = (2 * a_narrow).log() + torch.log1p((z2 - 1) * a2 / 6 + (z2 * (z2 - 6) + 3) * a2.square() / 120)
    # A wide box: √(2π) exp(z²/2) (Φ(a − z) − Φ(−a − z)). As z ≥ 0, they are not both near 1, where digits would be lost.
    a_wide = torch.where(narrow, 1.0, a)
    upper, lower = _log_ndtr(a_wide - z), _log_ndtr(-a_wide - z)
    difference = 0.5 * math.log(2 * math.pi) + z.square() / 2 + upper + log1mexp(upper - lower)
    return torch.where(narrow, series, difference)


def _log_ndtr(x: Tensor) -> Tensor:
    """The log of the normal distribution function, from −40 on.

    Farther down torch's gradient of it is noise, then NaN: a difference of numbers of size x². No estimate gets there: k of
    the p fitted neighbours lie in the box, so its nearer edge is within √((p − 1) / k) standard deviations of the mean.
    """
    log_probability: Tensor = torch.special.log_ndtr(x.clamp(min=-40))
    return log_probability
