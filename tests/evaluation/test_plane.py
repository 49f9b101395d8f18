"""The plane's grid, rings and share against brute force."""

import numpy as np
import pytest

from besnn.errors import InputError
from besnn.evaluation.plane import Plane, confidence_by_distance, share_confident


def test_grid_spans_data_and_margin_and_keeps_its_layout() -> None:
    plane = Plane.around([[0.0, 10.0], [2.0, 14.0]], margin=0.5, resolution=7)
    assert (plane.xs[0], plane.xs[-1], plane.ys[0], plane.ys[-1]) == (-1.0, 3.0, 8.0, 16.0)
    grid = plane.as_grid(plane.points[:, 0] + 100 * plane.points[:, 1])
    for row, column in [(0, 0), (3, 5), (6, 2)]:
        assert grid[row, column] == plane.xs[column] + 100 * plane.ys[row]


def test_data_on_a_line_still_has_a_plane() -> None:
    plane = Plane.around([[0.0, 1.0], [1.0, 1.0]], resolution=3)
    assert (plane.ys[0], plane.ys[-1]) == (0.0, 2.0)


def test_rings_against_brute_force() -> None:
    generator = np.random.default_rng(0)
    data, points, confidence = generator.normal(size=(30, 2)), generator.uniform(-4, 4, (200, 2)), generator.random(200)
    edges = (0.0, 0.3, 1.0, 2.5, 50.0, 60.0)
    rings = confidence_by_distance(points, confidence, data, edges)
    nearest = np.array([min(np.hypot(*(point - known)) for known in data) for point in points])
    for ring, inner, outer in zip(rings, edges, edges[1:], strict=False):
        inside = [value for value, distance in zip(confidence, nearest, strict=True) if inner <= distance < outer]
        assert (ring.inner, ring.outer, ring.n) == (inner, outer, len(inside))
        if inside:
            assert ring.mean_confidence == pytest.approx(np.mean(inside))
    assert np.isnan(rings[-1].mean_confidence)
    assert sum(ring.n for ring in rings) == 200


def test_share_counts_strictly_above() -> None:
    assert share_confident([0.5, 0.51, 0.9, 0.1]) == 0.5
    assert share_confident([0.5, 0.51, 0.9, 0.1], above=0.8) == 0.25


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: Plane.around([[1.0, 2.0, 3.0]]), r"data has shape \[1, 3\]"),
        (lambda: Plane.around([[1.0, np.inf]]), "NaN or infinite"),
        (lambda: Plane.around([[0.0, 1.0]], resolution=3).as_grid([1.0]), "1 values for a grid of 3 × 3"),
        (lambda: confidence_by_distance([[0, 0]], [0.5], [[0, 0]], edges=(1, 0)), r"edges=\[1, 0\]"),
        (lambda: confidence_by_distance([[0, 0]], [0.5], [[0, 0]], edges=(1,)), r"edges=\[1\]"),
        (lambda: confidence_by_distance([[0, 0]], [0.5, 0.5], [[0, 0]], edges=(0, 1)), "points 1, confidence 2"),
    ],
)
def test_wrong_input_is_named(call: object, words: str) -> None:
    with pytest.raises(InputError, match=words):
        call()
