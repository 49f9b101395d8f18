"""k-nearest-neighbour estimates of differential entropy, differentiable and in static shapes.

Both estimators are Ĥ = ψ(n) − ψ(k) + mean_i log V_i, in nats, where V_i is the volume around point i that reaches its k-th
neighbour. `kl` (Kozachenko & Leonenko 1987) takes the volume of a ball, with a density that is constant in it. In many
dimensions that ball is large and the density varies within it. `kpn` (Lombardi & Pant 2016, "Nonparametric k-nearest-neighbor
entropy estimator") takes the density f as an unnormalised Gaussian, fitted to the p nearest neighbours, over the max-norm box
that reaches the k-th one; its volume is (∫_box f) / f(x). With a diagonal covariance the integral is a product of differences
of error functions.
"""

import math
from typing import Literal

import torch
from torch import Tensor

from besnn.checks import check_choice, check_inputs
from besnn.errors import InputError
from besnn.objective.kernel import log1mexp

Estimator = Literal["kl", "kpn"]
SMALLEST_DISTANCE = 1e-18
"""Distances below this count as this, so that duplicates keep a finite logarithm; its square is a normal float32."""
SMALLEST_DEVIATION = 1e-6
"""The smallest standard deviation of a fitted Gaussian, in units of its neighbourhood's half-width."""


def knn_entropy(points: Tensor, k: int = 3, estimator: Estimator = "kl", p: int = 100) -> Tensor:
    """Estimate the differential entropy, in nats, of the distribution that the points were drawn from.

    Differentiable in the points. Duplicates count as points 1e-18 apart. Memory grows with n².

    Args:
        points: `[..., n, d]`, n > k.
        k: the neighbour whose distance measures the density.
        estimator: `"kl"`, or `"kpn"`, which is less biased for correlated points in many dimensions.
        p: the number of neighbours that `kpn` fits its Gaussian to, at least k; n − 1 if there are fewer.

    Returns:
        `[...]`.

    >>> points = torch.rand(1000, 2, generator=torch.Generator().manual_seed(0))  # uniform on the unit square: 0 nats
    >>> bool(knn_entropy(points).abs() < 0.1), bool(knn_entropy(points, estimator="kpn").abs() < 0.1)
    (True, True)
    """
    check_estimator(k, estimator, p)
    if isinstance(points, Tensor) and (points.ndim < 2 or not points.shape[-1]):
        raise InputError(f"points have shape {list(points.shape)}: expected [..., n, d], so for n numbers use points[:, None]")
    check_inputs(points)
    n = points.shape[-2]
    if n <= k:
        raise InputError(f"n={n} points are too few for k={k}: pass at least {k + 1} points or a smaller k")
    entropy, _ = grouped_entropy(points, torch.zeros(n, dtype=torch.int64, device=points.device), 1, k, estimator, p)
    return entropy[..., 0]


def grouped_entropy(
    points: Tensor, groups: Tensor, num_groups: int, k: int = 3, estimator: Estimator = "kl", p: int = 100
) -> tuple[Tensor, Tensor]:
    """Estimate the entropy of each group of points by masks, so that shapes do not depend on values.

    Points are `[..., n, d]` and groups integers `[..., n]`, which broadcast; points whose group is not in `0 .. num_groups − 1`
    are ignored. Return the entropies `[..., num_groups]`, 0 for a group of k points or fewer, and which of them are valid, with
    the leading dimensions of `groups`.
    """
    points = points.to(torch.promote_types(points.dtype, torch.float32))
    belongs = groups[..., None] == torch.arange(num_groups, device=groups.device)
    counts = belongs.sum(-2)
    if points.shape[-2] <= k:
        return points.new_zeros((*points.shape[:-2], num_groups)), torch.zeros_like(counts, dtype=torch.bool)
    log_volume = _log_ball_volume(points, groups, k) if estimator == "kl" else log_gaussian_volume(points, groups, k, p)
    size = counts.clamp(min=1).to(points.dtype)
    mean_log_volume = torch.where(belongs, log_volume[..., None], 0.0).sum(-2) / size
    entropy = torch.digamma(size) - torch.digamma(torch.full_like(size, k)) + mean_log_volume
    valid = counts > k
    return torch.where(valid, entropy, 0.0), valid


def check_estimator(k: int, estimator: Estimator, p: int = 100) -> None:
    """Raise unless the settings allow an estimate."""
    if not isinstance(k, int) or k < 1:
        raise InputError(f"k={k!r}: pass a whole number of neighbours, 1 or more")
    check_choice("estimator", estimator, ("kl", "kpn"))
    if estimator == "kpn" and p < k:
        raise InputError(f"p={p} is less than k={k}: fit the Gaussian to at least k neighbours")


def _log_ball_volume(points: Tensor, groups: Tensor, k: int) -> Tensor:
    """Compute the log volume of the Euclidean ball that reaches each point's k-th neighbour, `[..., n]`."""
    d = points.shape[-1]
    neighbours, _ = nearest_neighbours(points, groups, k, norm=2.0)
    squared_radius = offset_to(points, neighbours[..., k - 1]).square().sum(-1)
    log_unit_ball = d / 2 * math.log(math.pi) - math.lgamma(d / 2 + 1)
    return log_unit_ball + d / 2 * squared_radius.clamp(min=SMALLEST_DISTANCE**2).log()


def nearest_neighbours(points: Tensor, groups: Tensor, count: int, norm: float) -> tuple[Tensor, Tensor]:
    """Find the `count` nearest other points of each point's own group, nearest first.

    Euclidean distances come from a matrix product in float64, which orders near duplicates in float32 correctly. They only
    select, so no gradient passes.

    Points `[..., n, d]` with groups `[..., n]` give indices `[..., n, count]`, and the number of neighbours among them,
    `[..., n]`. If the group has fewer than `count`, the last indices are the point's own.
    """
    with torch.no_grad():
        distances = _squared_distances(points) if norm == 2 else torch.cdist(points, points, p=norm)
        itself = torch.arange(points.shape[-2], device=points.device)[:, None]
        allowed = (groups[..., :, None] == groups[..., None, :]) & (itself != itself.T)
        index = distances.masked_fill(~allowed, math.inf).topk(count, dim=-1, largest=False).indices
        available = allowed.sum(-1).clamp(max=count).expand(index.shape[:-1])
        named = torch.arange(count, device=points.device) < available[..., None]
        return torch.where(named, index, itself), available


def _squared_distances(points: Tensor) -> Tensor:
    exact = points.double()
    centred = exact - exact.mean(-2, keepdim=True)
    squares = centred.square().sum(-1)
    distances = squares[..., :, None] + squares[..., None, :] - 2 * centred @ centred.mT
    return distances.to(points.dtype)


def offset_to(points: Tensor, index: Tensor) -> Tensor:
    """Return the offset from each point to the point of that index, `[..., n, d]` for an index `[..., n]`."""
    return points.gather(-2, index[..., None].expand_as(points)) - points


def log_gaussian_volume(points: Tensor, groups: Tensor, k: int, p: int) -> Tensor:
    """Compute the log of (∫ f over the box) / f(x) at each point, `[..., n]`, with f fitted to p neighbours of its own group.

    It is finite but meaningless for a point whose group has k points or fewer.
    """
    neighbours, available = nearest_neighbours(points, groups, min(p, points.shape[-2] - 1), norm=math.inf)
    half_width = offset_to(points, neighbours[..., k - 1]).abs().amax(-1, keepdim=True).clamp(min=SMALLEST_DISTANCE)
    offset, deviation = _fit_gaussian(points, neighbours, available)
    by_dimension = deviation.log() + log_box_integral(offset / deviation, half_width / deviation)
    return by_dimension.sum(-1)


def _fit_gaussian(points: Tensor, neighbours: Tensor, available: Tensor) -> tuple[Tensor, Tensor]:
    """Return each point's offset from its neighbours' mean, and their standard deviation per dimension: both `[..., n, d]`.

    The moments are products of a 0/1 matrix with the points, which avoids the `[n, p, d]` tensor of neighbours. The variance is
    then a difference of sums, so these run in float64, where neither cancellation nor reduced precision hurts.
    """
    n = points.shape[-2]
    fitted = torch.arange(neighbours.shape[-1], device=points.device) < available[..., None]
    weights = points.new_zeros((*neighbours.shape[:-1], n), dtype=torch.float64).scatter(-1, neighbours, fitted.double())
    count = available[..., None].clamp(min=1).double()
    centred = (points - points.mean(-2, keepdim=True).detach()).double()
    mean = weights @ centred / count
    variance = (weights @ centred.square() / count - mean.square()) * (count / (count - 1).clamp(min=1))
    # Exact moments lie within these bounds. Rounded ones may not where neighbours coincide, in all dimensions or in one.
    farthest = neighbours.gather(-1, (available[..., None] - 1).clamp(min=0)).squeeze(-1)
    extent = offset_to(points.detach(), farthest).abs().amax(-1, keepdim=True).clamp(min=SMALLEST_DISTANCE).double()
    offset = (centred - mean).clamp(-2 * extent, 2 * extent)
    deviation = variance.clamp((SMALLEST_DEVIATION * extent).square(), (2 * extent).square()).sqrt()
    return offset.to(points.dtype), deviation.to(points.dtype)


def log_box_integral(z: Tensor, a: Tensor) -> Tensor:
    """Compute log ∫_{−a}^{a} exp(−z u − u²/2) du: a Gaussian's integral over a box, relative to its value at the centre.

    In standard deviations, z is the box's centre from the mean and a > 0 its half-width. A box all beyond 40 is inaccurate.
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
    """Compute the log of the normal distribution function, from −40 on.

    Below that, torch's gradient is noise, then NaN: a difference of numbers of size x². No estimate gets there: k of the p
    fitted neighbours lie in the box, so its nearer edge is within √((p − 1) / k) standard deviations of the mean.
    """
    log_probability: Tensor = torch.special.log_ndtr(x.clamp(min=-40))
    return log_probability
