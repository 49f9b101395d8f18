"""k-nearest-neighbour estimates of differential entropy, differentiable and in static shapes.

Both estimators are Ĥ = ψ(n) − ψ(k) + mean_i log V_i, in nats, where V_i is the volume about point i that reaches its k-th
neighbour: `kl` (Kozachenko & Leonenko 1987) takes a ball's, `kpn` (Lombardi & Pant 2016) a box's, weighed by a local Gaussian.
"""

import math
from typing import Literal

import torch
from torch import Tensor

from besnn.checks import check_inputs
from besnn.errors import InputError
from besnn.objective.choices import check_choice
from besnn.objective.kpn import log_gaussian_volume
from besnn.objective.neighbours import SMALLEST_DISTANCE, nearest_neighbours, offset_to

Estimator = Literal["kl", "kpn"]


def knn_entropy(points: Tensor, k: int = 3, estimator: Estimator = "kl", p: int = 100) -> Tensor:
    """The differential entropy, in nats, of the distribution that the points were drawn from.

    Differentiable in the points. Duplicates count as points 1e-18 apart. Memory grows with n².

    Args:
        points: `[..., n, d]`, n > k.
        k: which neighbour's distance measures the density.
        estimator: `"kl"`, or `"kpn"`, which is less biased for correlated points in many dimensions.
        p: how many neighbours `kpn` fits its Gaussian to, at least k; n − 1 where there are fewer.

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
    """`knn_entropy` of each group of points, without cutting the groups out: shapes do not depend on values.

    Args:
        points: `[..., n, d]`.
        groups: integers `[..., n]`, its leading dimensions broadcast against those of `points`. Points whose group is not in
            `0 .. num_groups − 1` are left out.
        num_groups: how many groups.
        k: as in `knn_entropy`.
        estimator: as in `knn_entropy`.
        p: as in `knn_entropy`, capped by the size of each group.

    Returns:
        The entropies `[..., num_groups]`, 0 where a group has k points or fewer; and which of them are valid, with the leading
        dimensions of `groups`.

    >>> points = torch.tensor([[0.0], [1.0], [2.0], [3.0], [50.0]])
    >>> entropy, valid = grouped_entropy(points, torch.tensor([0, 0, 0, 0, 1]), num_groups=2, k=1)
    >>> bool(entropy[0].isclose(knn_entropy(points[:4], k=1))), valid.tolist()
    (True, [True, False])
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
    """Refuses settings that no estimate can be made with."""
    if not isinstance(k, int) or k < 1:
        raise InputError(f"k={k!r}: pass a whole number of neighbours, 1 or more")
    check_choice("estimator", estimator, ("kl", "kpn"))
    if estimator == "kpn" and p < k:
        raise InputError(f"p={p} is less than k={k}: fit the Gaussian to at least k neighbours")


def _log_ball_volume(points: Tensor, groups: Tensor, k: int) -> Tensor:
    """Log of the volume of the Euclidean ball that reaches each point's k-th neighbour, `[..., n]`."""
    d = points.shape[-1]
    neighbours, _ = nearest_neighbours(points, groups, k, norm=2.0)
    squared_radius = offset_to(points, neighbours[..., k - 1]).square().sum(-1)
    log_unit_ball = d / 2 * math.log(math.pi) - math.lgamma(d / 2 + 1)
    return log_unit_ball + d / 2 * squared_radius.clamp(min=SMALLEST_DISTANCE**2).log()
