import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, special, stats
from scipy.spatial import cKDTree

from besnn.errors import InputError
from besnn.objective import knn_entropy
from besnn.objective.entropy import grouped_entropy, log_box_integral, log_gaussian_volume, nearest_neighbours

ESTIMATORS = ["kl", "kpn"]
DIMENSIONS = [1, 8, 32]
REPEATS, N, K = 8, 1000, 3


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def gaussian_entropy(covariance):
    d = covariance.shape[0]
    return 0.5 * (d * math.log(2 * math.pi * math.e) + np.linalg.slogdet(covariance)[1])


# Closed forms. The ball about x that reaches its k-th neighbour holds a share u of the probability, and u ~ Beta(k, n − k)
# whatever the density. So the bias of `kl` is exactly E[log(volume of that ball · p(x) / u)], which quadrature gives wherever
# the ball's probability is known as a function of its radius. The tests subtract −mean log p(x_i) from the estimate, whose
# expectation is the entropy, so that little but the bias is left.


def midpoints(count):
    return (np.arange(count) + 0.5) / count


def log_unit_ball(d):
    return d / 2 * math.log(math.pi) - special.gammaln(d / 2 + 1)


def gaussian_bias(n, k, d):
    u = stats.beta.ppf(midpoints(100), k, n - k)[:, None]
    squared_norm = stats.chi2.ppf(midpoints(100), d)
    squared_radius = stats.ncx2.ppf(u, d, squared_norm)
    log_volume = log_unit_ball(d) + d / 2 * np.log(squared_radius)
    log_density = -d / 2 * math.log(2 * math.pi) - squared_norm / 2
    return float(np.mean(log_volume + log_density - np.log(u)))


def share_of_unit_ball(norm, radius, d):
    """The share of the unit ball that lies within `radius` of a point at `norm` from its centre: a lens, so two caps."""

    def cap(height):
        half = special.betainc((d + 1) / 2, 0.5, np.clip(1 - height**2, 0, 1)) / 2
        return np.where(height >= 0, half, 1 - half)

    lens = cap((norm**2 + 1 - radius**2) / (2 * norm)) + radius**d * cap((norm**2 + radius**2 - 1) / (2 * norm * radius))
    return np.where(radius <= 1 - norm, radius**d, np.where(radius >= 1 + norm, 1.0, lens))


def uniform_ball_bias(n, k, d):
    u = stats.beta.ppf(midpoints(100), k, n - k)[:, None]
    norm = midpoints(100) ** (1 / d)
    low, high = np.zeros((100, 100)), np.full((100, 100), 2.0)
    for _ in range(50):  # bisection for the radius that holds u
        middle = (low + high) / 2
        below = share_of_unit_ball(norm, middle, d) < u
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    return float(np.mean(d * np.log(high) - np.log(u)))


def assert_mean(values, expected):
    standard_error = values.std(0) / math.sqrt(len(values))
    assert abs(values.mean(0) - expected) < 5 * standard_error, (values.mean(0), expected, standard_error)


@pytest.mark.parametrize("d", DIMENSIONS)
def test_kl_has_exactly_its_theoretical_bias_on_a_gaussian(d):
    points = draw(REPEATS, N, d)
    sample_entropy = d / 2 * math.log(2 * math.pi) + points.square().sum(-1).mean(-1) / 2
    assert_mean(knn_entropy(points, K) - sample_entropy, gaussian_bias(N, K, d))


@pytest.mark.parametrize("d", DIMENSIONS)
def test_kl_has_exactly_its_theoretical_bias_on_a_uniform_ball(d):
    direction = torch.nn.functional.normalize(draw(REPEATS, N, d), dim=-1)
    radius = torch.rand(REPEATS, N, 1, generator=torch.Generator().manual_seed(1), dtype=torch.float64) ** (1 / d)
    assert_mean(knn_entropy(direction * radius, K) - log_unit_ball(d), uniform_ball_bias(N, K, d))


@pytest.mark.parametrize("d", DIMENSIONS)
def test_kpn_is_close_to_the_entropy_of_a_gaussian(d):
    # For kpn no expectation is known. Its publication reports errors that stay small against the entropy as dimensions grow;
    # 0.05 nats a dimension is under 4 % of the entropy, and a fifth of what a misfit by one half in every scale would give.
    points = draw(2, N, d)
    sample_entropy = d / 2 * math.log(2 * math.pi) + points.square().sum(-1).mean(-1) / 2
    error = knn_entropy(points, K, "kpn") - sample_entropy
    assert error.mean().abs() < 0.05 * d + 0.05


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("d", [1, 2])
def test_uniform_square(estimator, d):
    # Inside, both are unbiased. A coordinate within ε of a face at most halves its ball, and 2 d E[ε] of them lie so near.
    points = torch.rand(REPEATS, N, d, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    estimate = knn_entropy(points, K, estimator)
    radius = (K / N / math.exp(log_unit_ball(d))) ** (1 / d)
    bound = 2 * d * radius * math.log(2) + 5 * estimate.std() / math.sqrt(REPEATS)
    assert estimate.mean().abs() < bound


@pytest.mark.parametrize(("d", "kind"), [(16, "equal correlation"), (32, "chain")])
def test_kpn_is_closer_than_kl_on_correlated_gaussians(d, kind):
    lag = np.abs(np.subtract.outer(np.arange(d), np.arange(d)))
    covariance = 0.5 + 0.5 * np.eye(d) if kind == "equal correlation" else 0.5**lag
    points = draw(1500, d) @ torch.from_numpy(np.linalg.cholesky(covariance)).T
    error = {name: abs(knn_entropy(points, K, name).item() - gaussian_entropy(covariance)) for name in ESTIMATORS}
    assert error["kpn"] < 0.7 * error["kl"]


@pytest.mark.parametrize("k", [1, 3, 7])
def test_kl_equals_the_formula_with_a_tree(k):
    points = draw(2, 50, 3)
    expected = []
    for cloud in points.numpy():
        radius = cKDTree(cloud).query(cloud, k + 1)[0][:, -1]
        expected.append(special.digamma(50) - special.digamma(k) + log_unit_ball(3) + 3 * np.log(radius).mean())
    np.testing.assert_allclose(knn_entropy(points, k).numpy(), expected, rtol=1e-12)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_gradcheck(estimator):
    points = draw(2, 9, 2).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: knn_entropy(x, 2, estimator, p=5), points)


@settings(max_examples=25, deadline=None)
@given(
    estimator=st.sampled_from(ESTIMATORS),
    n=st.integers(4, 30),
    d=st.integers(1, 5),
    scale=st.floats(1e-3, 1e3),
    shift=st.floats(-100, 100),
    seed=st.integers(0, 1000),
)
def test_entropy_moves_with_the_points_as_it_should(estimator, n, d, scale, shift, seed):
    points = draw(n, d, seed=seed)
    entropy = knn_entropy(points, estimator=estimator)
    permutation = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    moved = knn_entropy(shift + points[permutation], estimator=estimator)
    scaled = knn_entropy(scale * points, estimator=estimator)
    torch.testing.assert_close(moved, entropy, rtol=1e-7, atol=1e-7)
    torch.testing.assert_close(scaled, entropy + d * math.log(scale), rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("kind", ["all equal", "all equal far away", "pairs", "more than k", "a constant dimension"])
def test_duplicates_keep_value_and_gradient_finite(estimator, kind, dtype):
    points = draw(12, 4).to(dtype)
    if kind == "all equal":
        points = points[:1].repeat(12, 1)
    elif kind == "all equal far away":
        points = 1e4 * points[:1].repeat(12, 1)
    elif kind == "pairs":
        points[6:] = points[:6]
    elif kind == "more than k":
        points[:6] = points[0]
    else:
        points[:, 2] = 3.7
    points.requires_grad_()
    entropy = knn_entropy(points, estimator=estimator)
    entropy.backward()
    assert entropy.isfinite()
    assert points.grad.isfinite().all()
    if kind != "pairs":
        assert entropy < knn_entropy(draw(12, 4), estimator=estimator)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_half_precision_points_are_estimated_in_float32(estimator):
    points = draw(40, 3).bfloat16()
    entropy = knn_entropy(points, estimator=estimator)
    assert entropy.dtype == torch.float32
    torch.testing.assert_close(entropy, knn_entropy(points.float(), estimator=estimator))


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("p", [4, 100])
def test_groups_equal_a_loop_over_them(estimator, p):
    points = draw(2, 40, 3)
    groups = torch.cat([torch.full((size,), group) for group, size in enumerate([3, 4, 20, 0, 12])] + [torch.tensor([-1])])
    points[:, groups == 1] += 50  # far apart, where a careless mask would show
    entropy, valid = grouped_entropy(points, groups, 5, k=3, estimator=estimator, p=p)
    assert valid.tolist() == [False, True, True, False, True]
    for group in range(5):
        alone = points[:, groups == group]
        expected = knn_entropy(alone, 3, estimator, p) if valid[group] else torch.zeros(2, dtype=torch.float64)
        torch.testing.assert_close(entropy[:, group], expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_groups_too_small_pass_no_gradient(estimator, dtype):
    points = draw(12, 3).to(dtype).requires_grad_()
    groups = torch.tensor([0] * 8 + [1] * 3 + [2])
    grouped_entropy(points, groups, 3, k=3, estimator=estimator)[0].sum().backward()
    assert points.grad.isfinite().all()
    assert points.grad[:8].ne(0).any()
    assert points.grad[8:].eq(0).all()


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_a_batch_smaller_than_k_holds_no_valid_group(estimator):
    entropy, valid = grouped_entropy(draw(2, 3, 5), torch.tensor([0, 0, 1]), 2, k=3, estimator=estimator)
    assert entropy.tolist() == [[0, 0], [0, 0]]
    assert valid.tolist() == [False, False]


@pytest.mark.parametrize(
    ("points", "settings_", "message"),
    [
        (torch.zeros(3, 2), {"k": 3}, "n=3 points are too few for k=3: pass at least 4"),
        ([[0.0], [1.0]], {}, "list"),
        (torch.zeros(5), {}, r"points have shape \[5\]"),
        (torch.zeros(5, 0), {}, r"points have shape \[5, 0\]"),
        (torch.zeros(5, 2, dtype=torch.int64), {}, "torch.int64"),
        (torch.full((5, 2), math.nan), {}, "10 values that are NaN or infinite"),
        (torch.zeros(5, 2), {"k": 0}, "k=0"),
        (torch.zeros(5, 2), {"k": 1.5}, "k=1.5"),
        (torch.zeros(5, 2), {"estimator": "vasicek"}, "estimator 'vasicek' is unknown: choose from 'kl', 'kpn'"),
        (torch.zeros(5, 2), {"estimator": "kpn", "p": 2}, "p=2 is less than k=3"),
    ],
)
def test_wrong_input_is_refused_by_name(points, settings_, message):
    with pytest.raises(InputError, match=message):
        knn_entropy(points, **settings_)


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
