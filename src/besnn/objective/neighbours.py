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
        Indices `[..., n, count]`, and how many neighbours they name, `[..., n]`. Where the group has fewer than `count`, the
        last indices are the point's own.

    >>> points, groups = torch.tensor([[0.0], [1.0], [5.0], [6.5]]), torch.tensor([0, 1, 0, 0])
    >>> index, available = nearest_neighbours(points, groups, count=2, norm=2)
    >>> index.tolist(), available.tolist()
    ([[2, 3], [1, 1], [3, 0], [2, 0]], [2, 0, 2, 2])
    """
    with torch.no_grad():
        distances = torch.cdist(points, points, p=norm, compute_mode="donot_use_mm_for_euclid_dist")
        itself = torch.arange(points.shape[-2], device=points.device)[:, None]
        allowed = (groups[..., :, None] == groups[..., None, :]) & (itself != itself.T)
        index = distances.masked_fill(~allowed, math.inf).topk(count, dim=-1, largest=False).indices
        available = allowed.sum(-1).clamp(max=count).expand(index.shape[:-1])
        named = torch.arange(count, device=points.device) < available[..., None]
        return torch.where(named, index, itself), available


def offset_to(points: Tensor, index: Tensor) -> Tensor:
    """From each point to the point of that index: `[..., n, d]` for points `[..., n, d]` and an index `[..., n]`.

    >>> offset_to(torch.tensor([[0.0], [1.0], [5.0]]), torch.tensor([2, 0, 1])).flatten().tolist()
    [5.0, -1.0, -4.0]
    """
    return points.gather(-2, index[..., None].expand_as(points)) - points
