"""Nearest neighbours within a group, in static shapes: other groups are masked, never cut out."""

import math

import torch
from torch import Tensor

SMALLEST_DISTANCE = 1e-18
"""Distances below this count as this, so that duplicates keep a finite logarithm; its square is a normal float32."""


def nearest_neighbours(points: Tensor, groups: Tensor, count: int, norm: float) -> tuple[Tensor, Tensor]:
    """The `count` nearest other points of each point's own group, nearest first.

    Distances come from the coordinates' differences, not from a matrix product, so that near duplicates are ordered rightly in
    any matrix-product precision. They select only, so no gradient passes.

    Args:
        points: `[..., n, d]`.
        groups: `[..., n]`, its leading dimensions broadcast against those of `points`.
        count: how many, at most n − 1.
        norm: the order of the norm; 2 or infinity.

    Returns:
        Indices `[..., n, count]`, and how many of them are of the point's own group, `[..., n]`, at most `count`. The others,
        at the end, are arbitrary.

    >>> points, groups = torch.tensor([[0.0], [1.0], [5.0], [6.5]]), torch.tensor([0, 1, 0, 0])
    >>> nearest_neighbours(points, groups, count=1, norm=2)
    (tensor([[2],
            [0],
            [3],
            [2]]), tensor([1, 0, 1, 1]))
    """
    with torch.no_grad():
        distances = torch.cdist(points, points, p=norm, compute_mode="donot_use_mm_for_euclid_dist")
        itself = torch.eye(points.shape[-2], dtype=torch.bool, device=points.device)
        allowed = (groups[..., :, None] == groups[..., None, :]) & ~itself
        distances = distances.masked_fill(~allowed, math.inf)
        available = allowed.sum(-1).clamp(max=count).expand(distances.shape[:-1])
        return distances.topk(count, dim=-1, largest=False).indices, available


def offset_to(points: Tensor, index: Tensor) -> Tensor:
    """From each point to the point of that index: `[..., n, d]` for points `[..., n, d]` and an index `[..., n]`.

    >>> offset_to(torch.tensor([[0.0], [1.0], [5.0]]), torch.tensor([2, 0, 1])).flatten().tolist()
    [5.0, -1.0, -4.0]
    """
    return points.gather(-2, index[..., None].expand_as(points)) - points
