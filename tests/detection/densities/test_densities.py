"""Feature densities: what every density must do, then each against an independent oracle."""

import copy

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.stats import multivariate_normal
from sklearn.covariance import oas
from sklearn.metrics import roc_auc_score
from sklearn.neighbors import NearestNeighbors

from besnn.detection import DENSITIES, ClassGaussianDensity, Density, NearestNeighbourDensity
from besnn.detection.densities import ClassCovarianceDensity, ClassResidualDensity, WhitenedNeighbourDensity
from besnn.detection.densities.nearest_neighbour import STORAGES, Storage, decode_rows, encode_rows
from besnn.errors import InputError, NotReadyError

MEMBERS, DIMENSION = 2, 6
LABELS = torch.arange(300) % 3


def features(n: int, seed: int, shift: float = 0.0) -> torch.Tensor:
    """Three classes with correlated features, apart by a few standard deviations."""
    generator = torch.Generator().manual_seed(seed)
    fixed = torch.Generator().manual_seed(7)
    mixing = torch.randn(MEMBERS, DIMENSION, DIMENSION, generator=fixed)
    centres = 6 * torch.randn(MEMBERS, 3, DIMENSION, generator=fixed)
    return torch.randn(MEMBERS, n, DIMENSION, generator=generator) @ mixing + centres[:, torch.arange(n) % 3] + shift


def fitted(name: str) -> Density:
    return DENSITIES[name]().fit(features(300, 0), LABELS)


@pytest.mark.parametrize("name", DENSITIES)
class TestEveryDensity:
    def test_unusual_inputs_score_higher(self, name: str) -> None:
        density = fitted(name)
        ordinary, strange = density.score(features(60, 1)), density.score(features(60, 2, shift=20.0))
        assert ordinary.shape == (60,)
        # the relative distance is not larger far away from everything, where all classes and the whole are equally bad
        assert strange.median() > (ordinary.median() if name == "relative-mahalanobis" else ordinary.max())

    def test_a_saved_density_scores_the_same(self, name: str) -> None:
        density = fitted(name)
        again = DENSITIES[name].from_state({key: value.clone() for key, value in density.state().items()})
        assert torch.equal(again.score(features(60, 1)), density.score(features(60, 1)))
        assert again.state().keys() == density.state().keys()
        assert all(torch.equal(again.state()[key], value) for key, value in density.state().items())

    def test_a_copy_of_a_density_that_has_scored_scores_the_same(self, name: str) -> None:
        density = fitted(name)
        scores = density.score(features(60, 1))
        assert torch.equal(copy.deepcopy(density).score(features(60, 1)), scores)

    def test_scores_beyond_a_limit_are_exact(self, name: str) -> None:
        density, batch = fitted(name), features(200, 1)
        exact = density.score(batch)
        limit = float(exact.median())
        found = density.score_beyond(batch, limit)
        assert torch.equal(found[exact > limit], exact[exact > limit])
        assert found[exact <= limit].max() <= limit

    def test_scores_each_input_by_itself(self, name: str) -> None:
        density, batch = fitted(name), features(20, 1)
        one_by_one = torch.cat([density.score(batch[:, [row]]) for row in range(20)])
        torch.testing.assert_close(density.score(batch), one_by_one)
        assert density.score(batch[:, :0]).shape == (0,)

    def test_averages_over_the_members(self, name: str) -> None:
        training, batch = features(300, 0), features(20, 1)
        alone = [DENSITIES[name]().fit(training[[m]], LABELS).score(batch[[m]]) for m in range(MEMBERS)]
        torch.testing.assert_close(fitted(name).score(batch), torch.stack(alone).mean(dim=0))

    def test_an_exported_program_scores_the_same(self, name: str, exported) -> None:
        density, batch = fitted(name), features(40, 1)
        expected = density.score(batch)
        torch.testing.assert_close(exported(density, batch), expected, rtol=1e-4, atol=1e-4)
        assert torch.equal(density.score(batch), expected)  # as it was

    def test_refuses_to_score_before_it_is_fitted(self, name: str) -> None:
        with pytest.raises(NotReadyError, match="fit"):
            DENSITIES[name]().score(features(5, 0))
        with pytest.raises(NotReadyError, match="fit"):
            DENSITIES[name]().state()

    @pytest.mark.parametrize(
        ("wrong", "message"),
        [
            (torch.zeros(2, 5), r"shape \[2, 5\]"),
            (torch.zeros(2, 5, 6, dtype=torch.long), r"torch\.int64"),
            (torch.full((2, 5, 6), torch.nan), "NaN or infinite"),
            (torch.zeros(3, 5, 6), r"fitted on \[2, n, 6\]"),
            (torch.zeros(2, 5, 7), r"fitted on \[2, n, 6\]"),
            ([[[1.0]]], "list"),
        ],
    )
    def test_refuses_other_features(self, name: str, wrong: torch.Tensor, message: str) -> None:
        with pytest.raises(InputError, match=message):
            fitted(name).score(wrong)


@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
@pytest.mark.parametrize(("storage", "tolerance"), [("float16", 1e-3), ("int8", 2e-2)])
def test_nearest_neighbours_equal_scikit_learn(metric: str, storage: Storage, tolerance: float) -> None:
    training, batch = features(300, 0), features(40, 1)
    found = NearestNeighbourDensity(k=7, metric=metric, storage=storage).fit(training).score(batch)
    expected = np.mean(
        [
            NearestNeighbors(n_neighbors=7, algorithm="brute", metric=metric).fit(t).kneighbors(b)[0][:, -1]
            for t, b in zip(training.double().numpy(), batch.double().numpy(), strict=True)
        ],
        axis=0,
    )
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance * 1e-1)


def test_cosine_ignores_length() -> None:
    density, batch = NearestNeighbourDensity().fit(features(300, 0)), features(40, 1)
    torch.testing.assert_close(density.score(batch * 1e3), density.score(batch))


def test_a_subset_is_drawn_by_its_seed() -> None:
    training, batch = features(300, 0), features(40, 1)
    scores = [NearestNeighbourDensity(k=3, max_rows=50, seed=seed).fit(training).score(batch) for seed in (0, 0, 1)]
    assert torch.equal(scores[0], scores[1])
    assert not torch.equal(scores[0], scores[2])
    state = NearestNeighbourDensity(k=3, max_rows=50).fit(training).state()
    assert state["codes"].shape == (MEMBERS, 50, DIMENSION)


@pytest.mark.parametrize(("storage", "bytes_a_number"), [("float16", 2), ("int8", 1)])
def test_stores_what_it_says(storage: Storage, bytes_a_number: int) -> None:
    state = NearestNeighbourDensity(storage=storage).fit(features(300, 0)).state()
    size = sum(value.numel() * value.element_size() for value in state.values())
    assert size == MEMBERS * 300 * (bytes_a_number * DIMENSION + 4) + 2 * 8


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"k": 301}, "k=301"),
        ({"k": 0}, "k=0"),
        ({"k": 20, "max_rows": 10}, "k=20"),
        ({"metric": "manhattan"}, "'manhattan'"),
        ({"storage": "int4"}, "'int4'"),
    ],
)
def test_nearest_neighbours_refuse_wrong_settings(settings: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        NearestNeighbourDensity(**settings).fit(features(300, 0))


@pytest.mark.parametrize("storage", STORAGES)
@given(
    rows=arrays(np.float32, (4, 5), elements=st.floats(-(2.0**100), 2.0**100, width=32, allow_subnormal=False) | st.just(0.0))
)
def test_compact_rows_err_as_little_as_they_say(storage: Storage, rows: np.ndarray) -> None:
    decoded = decode_rows(*encode_rows(torch.from_numpy(rows), storage)).numpy().astype(np.float64)
    largest = np.abs(rows).max(axis=1, keepdims=True).astype(np.float64)
    allowed = np.abs(rows) * 2.0**-11 + largest * 2.0**-24 if storage == "float16" else largest / 253
    assert (np.abs(decoded - rows) <= allowed * (1 + 1e-5)).all()


def test_gaussians_equal_scipy() -> None:
    training, batch = features(300, 0), features(40, 1)
    expected = np.zeros(40)
    for x, queries in zip(training.double().numpy(), batch.double().numpy(), strict=True):
        means = np.stack([x[c == LABELS].mean(axis=0) for c in range(3)])
        shrunk, _ = oas(x - means[LABELS], assume_centered=True)
        expected -= np.max([multivariate_normal(mean, shrunk).logpdf(queries) for mean in means], axis=0) / MEMBERS
    found = ClassGaussianDensity().fit(training, LABELS).score(batch)
    np.testing.assert_allclose(found, expected, rtol=1e-4)


def test_gaussians_with_a_covariance_per_class_equal_scipy() -> None:
    training, batch = features(300, 0), features(40, 1)
    expected = np.zeros(40)
    for x, queries in zip(training.double().numpy(), batch.double().numpy(), strict=True):
        means = np.stack([x[c == LABELS].mean(axis=0) for c in range(3)])
        shared, _ = oas(x - means[LABELS], assume_centered=True)
        log_densities = []
        for c, mean in enumerate(means):
            own = np.cov(x[c == LABELS].T, bias=True)
            mixed = (100 * own + DIMENSION / 10 * shared) / (100 + DIMENSION / 10)
            log_densities.append(multivariate_normal(mean, mixed).logpdf(queries))
        expected -= np.max(log_densities, axis=0) / MEMBERS
    found = ClassCovarianceDensity().fit(training, LABELS).score(batch)
    np.testing.assert_allclose(found, expected, rtol=1e-4)


def test_residuals_are_those_of_regressing_each_column_on_the_others() -> None:
    training, batch = features(300, 0), features(40, 1)
    gaussians = ClassCovarianceDensity().fit(training, LABELS).state()
    row, column = torch.tril_indices(DIMENSION, DIMENSION)
    expected = np.zeros(40)
    for rows, queries, means, packed in zip(training, batch, gaussians["means"], gaussians["factors"], strict=True):
        factors = np.zeros((3, DIMENSION, DIMENSION))
        factors[:, row, column] = packed
        covariances = factors @ factors.transpose(0, 2, 1)
        residuals = [_regressed(x.double().numpy(), means.double().numpy(), covariances) for x in (rows, queries)]
        scales = np.sort(residuals[0], axis=0)[296]  # 3 of 300 rows have a larger one
        expected += (residuals[1] / scales).max(axis=1) / MEMBERS
    np.testing.assert_allclose(ClassResidualDensity().fit(training, LABELS).score(batch), expected, rtol=1e-4)


def _regressed(x: np.ndarray, means: np.ndarray, covariances: np.ndarray) -> np.ndarray:
    """Each column's distance from its regression on the others, over the deviation that is left, by the densest class."""
    densities, residuals = [], []
    for mean, covariance in zip(means, covariances, strict=True):
        densities.append(multivariate_normal(mean, covariance).logpdf(x))
        found = np.empty_like(x)
        for j in range(DIMENSION):
            others = np.arange(DIMENSION) != j
            slopes = np.linalg.solve(covariance[np.ix_(others, others)], covariance[others, j])
            variance = covariance[j, j] - covariance[j, others] @ slopes
            found[:, j] = np.abs((x - mean)[:, j] - (x - mean)[:, others] @ slopes) / np.sqrt(variance)
        residuals.append(found)
    return np.stack(residuals)[np.argmax(densities, axis=0), np.arange(len(x))]


def test_a_wrong_cell_stands_out_by_its_residual() -> None:
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(1, 700, 40, generator=generator)
    rows[..., 1] = rows[..., 0] + 0.1 * torch.randn(1, 700, generator=generator)  # a column that another one tells
    known, wrong = rows[:, 400:], rows[:, 400:].clone()
    wrong[..., 1] = wrong[..., 1].roll(1, dims=1)
    aurocs = []
    for density in (ClassResidualDensity(), ClassCovarianceDensity()):
        density.fit(rows[:, :400], torch.zeros(400, dtype=torch.int64))
        aurocs.append(roc_auc_score([0] * 300 + [1] * 300, torch.cat([density.score(known), density.score(wrong)])))
    assert aurocs[0] > 0.9
    assert aurocs[0] > aurocs[1]


def test_residuals_of_a_constant_column_are_finite() -> None:
    training = features(300, 0)
    training[..., 2] = 0.0
    density = ClassResidualDensity().fit(training, LABELS)
    assert torch.isfinite(density.score(training)).all()
    changed = training.clone()
    changed[..., 2] = 1.0
    assert (density.score(changed) > density.score(training)).all()


def test_a_class_of_one_row_has_the_covariance_of_all() -> None:
    labels = LABELS.clone()
    labels[0] = 3
    density = ClassCovarianceDensity().fit(features(300, 0), labels)
    assert density.state()["factors"].shape[:2] == (MEMBERS, 4)
    assert torch.isfinite(density.score(features(40, 1))).all()


def test_whitened_neighbours_equal_scikit_learn() -> None:
    training, batch = features(300, 0), features(40, 1)
    expected = np.zeros(40)
    for x, queries in zip(training.double().numpy(), batch.double().numpy(), strict=True):
        means = np.stack([x[c == LABELS].mean(axis=0) for c in range(3)])
        shrunk, _ = oas(x - means[LABELS], assume_centered=True)
        search = NearestNeighbors(
            n_neighbors=7, algorithm="brute", metric="mahalanobis", metric_params={"VI": np.linalg.inv(shrunk)}
        )
        expected += search.fit(x).kneighbors(queries)[0][:, -1] / MEMBERS
    found = WhitenedNeighbourDensity(k=7).fit(training, LABELS).score(batch)
    np.testing.assert_allclose(found, expected, rtol=2e-3)


def on_an_arc(n: int, seed: int, spread: float) -> torch.Tensor:
    """Two members' features on a short arc, `spread` long, far from the origin, where a plain product cancels."""
    angle = spread * torch.rand(2, n, 1, generator=torch.Generator().manual_seed(seed))
    return 10 * torch.cat([angle.cos(), angle.sin(), angle.square(), torch.ones_like(angle)], dim=-1)


@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
@pytest.mark.parametrize(("k", "spread"), [(1, 0.05), (20, 1.0), (200, 0.05)])
def test_neighbours_are_exact_in_an_exported_program(metric: str, k: int, spread: float, exported) -> None:
    density = NearestNeighbourDensity(k=k, metric=metric).fit(on_an_arc(200, 0, spread))
    batch = on_an_arc(50, 1, spread)
    tolerance = 1e-7 if metric == "cosine" else 1e-4
    torch.testing.assert_close(exported(density, batch), density.score(batch), rtol=1e-4, atol=tolerance)


def test_gaussians_survive_dead_features_and_gaps_between_labels() -> None:
    training = features(300, 0)
    training[..., 2] = 0.0
    density = ClassGaussianDensity().fit(training, LABELS * 5)
    assert density.state()["means"].shape == (MEMBERS, 3, DIMENSION)
    ordinary = training[:, :10]
    alive = ordinary.clone()
    alive[..., 2] = 1.0
    assert (density.score(alive) > density.score(ordinary)).all()


@pytest.mark.parametrize(
    ("labels", "message"),
    [(LABELS[:-1], r"shape \[299\]"), (LABELS.float(), "dtype float"), (torch.arange(300), "singular")],
)
def test_gaussians_refuse_what_they_cannot_fit(labels: torch.Tensor, message: str) -> None:
    with pytest.raises(InputError, match=message):
        ClassGaussianDensity().fit(features(300, 0), labels)


def test_gradients_pass_after_a_first_score_without_them() -> None:
    density = ClassGaussianDensity().fit(features(300, 0), LABELS)
    batch = features(5, 1).requires_grad_()
    with torch.inference_mode():
        density.score(features(5, 1))
    density.score(batch).sum().backward()
    assert batch.grad.abs().sum() > 0
