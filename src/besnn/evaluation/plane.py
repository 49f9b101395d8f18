"""Confidence over a plane around two-dimensional data: the grid, and figures that summarise its picture."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from besnn.checks import as_numpy, check_same_length
from besnn.errors import InputError
from besnn.evaluation.checks import FloatArray, as_scores


@dataclass(frozen=True, eq=False)
class Plane:
    """A rectangular grid: ``xs`` ``[width]`` and ``ys`` ``[height]``, both ascending."""

    xs: FloatArray
    ys: FloatArray

    @classmethod
    def around(cls, data: npt.ArrayLike, margin: float = 1.0, resolution: int = 200) -> "Plane":
        """Return the grid that spans the data ``[n, 2]`` and, on each side, ``margin`` times its extent more.

        >>> plane = Plane.around([[0.0, 0.0], [1.0, 2.0]], margin=1.0, resolution=4)
        >>> plane.xs, plane.ys
        (array([-1.,  0.,  1.,  2.]), array([-2.,  0.,  2.,  4.]))
        """
        points = as_points(data, "data")
        low, high = points.min(axis=0), points.max(axis=0)
        border = margin * np.where(high > low, high - low, 1.0)
        xs, ys = np.linspace(low - border, high + border, resolution).T
        return cls(xs, ys)

    @property
    def points(self) -> FloatArray:
        """All grid points, ``[height · width, 2]``, row by row."""
        return np.stack(np.meshgrid(self.xs, self.ys), axis=-1).reshape(-1, 2)

    def as_grid(self, values: npt.ArrayLike) -> FloatArray:
        """Lay out values at `points` as ``[height, width]``."""
        flat = as_scores(values, "values")
        if flat.size != self.xs.size * self.ys.size:
            size = f"{self.xs.size} × {self.ys.size}"
            raise InputError(f"{flat.size} values for a grid of {size} points: give one value per point")
        return flat.reshape(self.ys.size, self.xs.size)


class Ring(NamedTuple):
    """The points of a plane at a distance in [inner, outer) from the nearest data point."""

    inner: float
    outer: float
    mean_confidence: float
    n: int


def confidence_by_distance(
    points: npt.ArrayLike, confidence: npt.ArrayLike, data: npt.ArrayLike, edges: Sequence[float]
) -> list[Ring]:
    """Compute the mean confidence ``[m]`` at points ``[m, 2]`` in rings at increasing distance from the data ``[n, 2]``.

    There is one ring per pair of consecutive ``edges``, in ascending order; the mean of a ring without points is NaN.
    """
    from sklearn.neighbors import NearestNeighbors  # slow to import

    where, known = as_points(points, "points"), as_points(data, "data")
    values = as_scores(confidence, "confidence")
    check_same_length(points=where, confidence=values)
    if len(edges) < 2 or np.any(np.diff(edges) <= 0):
        raise InputError(f"edges={list(edges)}: give at least two ascending distances")
    distance = NearestNeighbors(n_neighbors=1).fit(known).kneighbors(where)[0].ravel()
    rings = []
    for inner, outer in pairwise(edges):
        inside = values[(distance >= inner) & (distance < outer)]
        mean = float(inside.mean()) if inside.size else float("nan")
        rings.append(Ring(float(inner), float(outer), mean, inside.size))
    return rings


def share_confident(confidence: npt.ArrayLike, above: float = 0.5) -> float:
    """Compute the share of the plane whose confidence exceeds ``above``."""
    return float(np.mean(as_scores(confidence, "confidence") > above))


def as_points(values: npt.ArrayLike, name: str) -> FloatArray:
    """Return finite points of the plane as float64 ``[n, 2]``, n ≥ 1."""
    points = as_numpy(values, name)
    if points.ndim != 2 or points.shape[1] != 2 or not len(points):
        raise InputError(f"{name} has shape {list(points.shape)}: give points of the plane, [n, 2], n ≥ 1")
    if not np.isfinite(points).all():
        raise InputError(f"{name} has points that are NaN or infinite: drop them")
    return points.astype(np.float64)
