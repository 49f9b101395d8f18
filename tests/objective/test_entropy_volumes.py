"""The parts of the entropy estimates: neighbours against a sort, the Gaussian volume against the published formula."""

import math

import numpy as np
import pytest
import torch
from scipy import integrate, stats

from besnn.objective.entropy import log_box_integral, log_gaussian_volume, nearest_neighbours, offset_to

BOXES = [(z, a) for z in (0.0, 0.3, -1.0, 2.5, 8.0) for a in (1e-6, 1e-3, 0.02, 0.049, 0.051, 0.7, 3.0, 7.0, 30.0)]


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-9), (torch.float32, 2e-5)])
def test_box_integral_equals_numerical_integration(dtype, tolerance):
    for z, a in BOXES:
        breaks = [point for point in (-z,) if -a < point < a]
        area, _ = integrate.quad(lambda u, z=z: math.exp(-z * u - u * u / 2), -a, a, points=breaks, epsabs=0, epsrel=1e-12)
        value = log_box_integral(torch.tensor(z, dtype=dtype), torch.tensor(a, dtype=dtype)).item()
        assert value == pytest.approx(math.log(area), rel=tolerance, abs=tolerance), (z, a)


def test_box_integral_gradcheck_on_both_branches():
    z = torch.tensor([0.2, -1.0, 5.0, 0.5, -3.0, 6.0], dtype=torch.float64, requires_grad=True)
    a = torch.tensor([0.01, 0.02, 0.01, 0.4, 3.0, 1.0], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(log_box_integral, (z, a))


@pytest.mark.parametrize("z", [0.0, 1e6])
@pytest.mark.parametrize("a", [1e-18, 1e6])
def test_box_integral_is_finite_at_the_bounds_that_the_fit_can_reach(z, a):
    z, a = torch.tensor(z, requires_grad=True), torch.tensor(a, requires_grad=True)
    value = log_box_integral(z, a)
    value.backward()
    assert torch.stack([value, z.grad, a.grad]).isfinite().all()


def volume_by_hand(points, k, p):
    """The published formula, point by point: fit, then integrate the box by scipy's normal distribution."""
    log_volumes = []
    for i, x in enumerate(points):
        others = np.delete(points, i, axis=0)
        distances = np.abs(others - x).max(axis=1)
        nearest = others[np.argsort(distances)[:p]]
        gaussian = stats.norm(nearest.mean(0), nearest.std(0, ddof=1))
        half_width = np.sort(distances)[k - 1]
        mass = gaussian.cdf(x + half_width) - gaussian.cdf(x - half_width)
        log_volumes.append(np.sum(np.log(mass) - gaussian.logpdf(x)))
    return np.array(log_volumes)


@pytest.mark.parametrize("p", [5, 20, 100])
def test_gaussian_volume_equals_the_formula_point_by_point(p):
    points = torch.randn(60, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    volumes = log_gaussian_volume(points, torch.zeros(60, dtype=torch.int64), k=3, p=p)
    np.testing.assert_allclose(volumes.numpy(), volume_by_hand(points.numpy(), 3, p), rtol=1e-8)


def test_float32_stays_accurate_far_from_the_origin_and_under_autocast():
    # Coordinates on a fine binary grid, so that the shift itself rounds nothing away.
    points = (torch.randn(100, 4, generator=torch.Generator().manual_seed(0)) * 2**10).round() / 2**10
    groups = torch.zeros(100, dtype=torch.int64)
    exact = log_gaussian_volume(points.double(), groups, k=3, p=30)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        shifted = log_gaussian_volume(points + 4096, groups, k=3, p=30)
    torch.testing.assert_close(shifted.double(), exact, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("norm", [2.0, np.inf])
def test_neighbours_are_those_of_a_sort_by_hand(norm):
    generator = torch.Generator().manual_seed(0)
    points, groups = torch.randn(2, 20, 3, generator=generator), torch.randint(3, (20,), generator=generator)
    index, available = nearest_neighbours(points, groups, count=4, norm=norm)
    for leading in range(2):
        for i in range(20):
            others = [j for j in range(20) if j != i and groups[j] == groups[i]]
            distance = {j: np.linalg.norm((points[leading, j] - points[leading, i]).numpy(), ord=norm) for j in others}
            expected = sorted(others, key=distance.__getitem__)[:4]
            assert available[leading, i] == len(expected)
            assert index[leading, i].tolist() == expected + [i] * (4 - len(expected))


def test_near_duplicates_far_from_the_origin_are_told_apart():
    points = 1000 + torch.tensor([[0.0], [0.003], [0.001], [0.01]])
    index, _ = nearest_neighbours(points, torch.zeros(4, dtype=torch.int64), count=3, norm=2.0)
    assert index[0].tolist() == [2, 1, 3]


def test_groups_may_differ_between_leading_dimensions():
    points = torch.tensor([[0.0], [1.0], [3.0]]).expand(2, 3, 1)
    index, available = nearest_neighbours(points, torch.tensor([[0, 0, 0], [0, 1, 0]]), count=1, norm=2.0)
    assert index[:, 0, 0].tolist() == [1, 2]
    assert available.tolist() == [[1, 1, 1], [1, 0, 1]]


def test_offset_carries_the_gradient_of_both_ends():
    points = torch.tensor([[0.0], [1.0], [5.0]], requires_grad=True)
    offset_to(points, torch.tensor([2, 2, 0]))[0].sum().backward()
    assert points.grad.flatten().tolist() == [-1, 0, 1]
