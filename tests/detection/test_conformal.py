"""Conformal thresholds, overall and per group, and Benjamini–Hochberg selection: exactness, guarantees, refusals."""

import math
import re
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.stats import beta, binom, false_discovery_control

from besnn.detection import ConformalThreshold, MondrianThreshold, benjamini_hochberg, p_values
from besnn.detection.conformal import conformal_rank
from besnn.errors import InputError

REPETITIONS = 1000


def brute_force_p_values(calibration: np.ndarray, scores: np.ndarray) -> np.ndarray:
    return (1 + (calibration[None] >= scores[:, None]).sum(1)) / (len(calibration) + 1)


@pytest.mark.parametrize("alpha", ["0.05", "0.1", "0.01", "0.15", "0.3", "0.7", "0.95"])
@pytest.mark.parametrize("n", [9, 19, 99, 100, 199, 999, 12345])
def test_rank_is_the_ceiling_in_exact_arithmetic(n: int, alpha: str) -> None:
    exact = math.ceil((n + 1) * (1 - Fraction(alpha)))
    if exact > n:
        with pytest.raises(InputError, match="too few"):
            conformal_rank(n, float(alpha))
    else:
        assert conformal_rank(n, float(alpha)) == exact


@pytest.mark.parametrize(("n", "alpha", "delta"), [(59, 0.05, 0.05), (200, 0.05, 0.1), (5000, 0.01, 0.01), (2, 0.5, 0.25)])
def test_rank_with_delta_is_the_smallest_that_holds(n: int, alpha: float, delta: float) -> None:
    rank = conformal_rank(n, alpha, delta)
    assert beta(rank, n + 1 - rank).cdf(1 - alpha) <= delta * (1 + 1e-9)
    assert beta(rank - 1, n + 2 - rank).cdf(1 - alpha) > delta


def test_delta_never_weakens_the_average_guarantee() -> None:
    assert conformal_rank(500, 0.05, delta=0.99) == conformal_rank(500, 0.05)


@pytest.mark.parametrize("delta", [None, 0.1])
def test_the_stated_minimum_is_the_minimum(delta: float | None) -> None:
    with pytest.raises(InputError, match=r"3 calibration scores are too few for alpha=0\.05") as caught:
        conformal_rank(3, 0.05, delta)
    least = int(str(caught.value).split("at least ")[1].split(",")[0])
    assert conformal_rank(least, 0.05, delta) == least
    with pytest.raises(InputError, match="too few"):
        conformal_rank(least - 1, 0.05, delta)


@pytest.mark.parametrize("n", [19, 137, 1000])
def test_false_alarms_keep_to_alpha_over_resampled_calibrations(n: int) -> None:
    """For continuous scores the rate is exactly ⌊α(n+1)⌋/(n+1): the simulation must agree within 4 standard errors."""
    rng, alpha, new = np.random.default_rng(n), 0.05, 200
    rates = [ConformalThreshold(rng.normal(size=n), alpha).is_ood(rng.normal(size=new)).mean() for _ in range(REPETITIONS)]
    expected = math.floor(alpha * (n + 1) + 1e-9) / (n + 1)
    error = np.std(rates) / math.sqrt(REPETITIONS)
    assert abs(np.mean(rates) - expected) < 4 * error
    assert np.mean(rates) - 4 * error <= alpha


def test_delta_bounds_the_share_of_unlucky_calibrations() -> None:
    rng, alpha, delta = np.random.default_rng(3), 0.1, 0.2
    draws = np.sort(rng.uniform(size=(REPETITIONS, 150)))
    rate = np.array([1 - ConformalThreshold(draw, alpha, delta).threshold for draw in draws])  # exact for uniform scores
    unlucky = int((rate > alpha).sum())
    assert unlucky <= binom(REPETITIONS, delta).ppf(0.999)
    plain = np.array([1 - ConformalThreshold(draw, alpha).threshold for draw in draws])
    assert (plain > alpha).sum() > binom(REPETITIONS, delta).ppf(0.999)  # without delta the promise would fail


@pytest.mark.parametrize("levels", [2, 5])
def test_ties_keep_the_guarantee(levels: int) -> None:
    """On discrete scores `score ≥ τ` would raise false alarms in a third of the cases or more."""
    rng, alpha = np.random.default_rng(levels), 0.1
    rates, naive = [], []
    for _ in range(REPETITIONS):
        calibration, new = rng.integers(levels, size=99), rng.integers(levels, size=100)
        threshold = ConformalThreshold(calibration, alpha)
        assert np.array_equal(threshold.is_ood(new), threshold.p_values(new) <= alpha)
        rates.append(threshold.is_ood(new).mean())
        naive.append((new >= threshold.threshold).mean())
    assert np.mean(rates) <= alpha
    assert np.mean(naive) > alpha


SCORES = st.lists(st.integers(-3, 3).map(float) | st.floats(-1e6, 1e6), min_size=20, max_size=60)


@settings(max_examples=50)
@given(calibration=SCORES, scores=SCORES, alpha=st.sampled_from([0.05, 0.1, 0.25, 0.5]))
def test_p_values_equal_their_definition_and_decide_alike(calibration: list[float], scores: list[float], alpha: float) -> None:
    if min(calibration) == max(calibration):
        calibration[0] += 1
    threshold = ConformalThreshold(calibration, alpha)
    queries = np.array(scores + calibration)
    expected = brute_force_p_values(np.array(calibration), queries)
    np.testing.assert_array_equal(threshold.p_values(queries), expected)
    np.testing.assert_array_equal(p_values(queries, calibration), expected)
    np.testing.assert_array_equal(threshold.is_ood(queries), queries > threshold.threshold)
    np.testing.assert_array_equal(threshold.is_ood(queries), expected <= alpha)


def test_infinite_scores_are_the_extremes() -> None:
    threshold = ConformalThreshold(range(99))
    np.testing.assert_array_equal(threshold.p_values([math.inf, -math.inf]), [0.01, 1.0])


def test_answers_in_the_kind_of_the_question() -> None:
    threshold = ConformalThreshold(torch.arange(40.0), alpha=0.1)
    scores = torch.tensor([[1.0, 50.0]], dtype=torch.float16, requires_grad=True)
    p_values = threshold.p_values(scores)
    assert p_values.dtype == torch.float32
    assert p_values.shape == (1, 2)
    assert torch.equal(threshold.is_ood(scores), torch.tensor([[False, True]]))
    assert isinstance(threshold.p_values([1.0]), np.ndarray)
    assert threshold.p_values(5.0).shape == ()
    assert threshold.p_values(np.empty(0)).shape == (0,)


def test_precisions_mix_without_losing_ties() -> None:
    values = np.random.default_rng(0).normal(size=99).astype(np.float32)
    in_double = ConformalThreshold(values.astype(np.float64))
    in_single = ConformalThreshold(torch.from_numpy(values))
    expected = brute_force_p_values(values, values)
    np.testing.assert_array_equal(in_double.p_values(values), expected)
    np.testing.assert_array_equal(in_single.p_values(values.astype(np.float64)), expected)
    np.testing.assert_allclose(in_double.p_values(torch.from_numpy(values)), expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("scores", "message"),
    [
        ([], "no calibration scores"),
        ([0.5] * 100, "all calibration scores equal 0.5"),
        ([*range(50), math.inf], "contain inf"),
        ([*range(50), math.nan], "hold 1 NaN"),
        (torch.zeros(50, 2), r"shape \[50, 2\]"),
        (["a", "b"], "not numbers"),
        ([1.0, 2.0], "2 calibration scores are too few for alpha=0.05: provide at least 19"),
    ],
)
def test_refuses_calibration_scores_that_calibrate_nothing(scores: list[float], message: str) -> None:
    with pytest.raises(InputError, match=message):
        ConformalThreshold(scores)


@pytest.mark.parametrize("rate", [0.0, 1.0, -0.1, 1.5, math.nan, "0.05", None, [0.05]])
def test_refuses_rates_that_are_no_number_between_0_and_1(rate: object) -> None:
    with pytest.raises(InputError, match=rf"alpha={re.escape(repr(rate))} is not a false-alarm rate"):
        ConformalThreshold(range(100), alpha=rate)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="is not a false-discovery rate"):
        benjamini_hochberg([0.5], q=rate)  # type: ignore[arg-type]
    if rate is not None:  # which promises nothing
        with pytest.raises(InputError, match="delta="):
            ConformalThreshold(range(100), delta=rate)  # type: ignore[arg-type]


def grouped(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Scores whose spread depends on the group."""
    rng = np.random.default_rng(seed)
    groups = rng.integers(3, size=n)
    return rng.exponential(1.0 + 4.0 * groups), groups


def test_mondrian_equals_one_threshold_per_group() -> None:
    scores, groups = grouped(400, 0)
    new_scores, new_groups = grouped(300, 1)
    mondrian = MondrianThreshold(scores, groups, alpha=0.1, delta=0.2)
    p_values, decisions = mondrian.p_values(new_scores, new_groups), mondrian.is_ood(new_scores, new_groups)
    assert isinstance(p_values, np.ndarray)
    for group in range(3):
        alone = ConformalThreshold(scores[groups == group], alpha=0.1, delta=0.2)
        assert mondrian.thresholds[group].threshold == alone.threshold
        inside = new_groups == group
        np.testing.assert_array_equal(p_values[inside], alone.p_values(new_scores[inside]))
        np.testing.assert_array_equal(decisions[inside], alone.is_ood(new_scores[inside]))


def test_mondrian_keeps_the_false_alarm_rate_in_every_group() -> None:
    rates, pooled = [], []
    for repetition in range(300):
        scores, groups = grouped(300, 2 * repetition)
        new_scores, new_groups = grouped(300, 2 * repetition + 1)
        decisions = MondrianThreshold(scores, groups, alpha=0.1).is_ood(new_scores, new_groups)
        rates.append([decisions[new_groups == group].mean() for group in range(3)])
        pooled.append(ConformalThreshold(scores, alpha=0.1).is_ood(new_scores)[new_groups == 2].mean())
    error = np.std(rates, axis=0) / np.sqrt(len(rates))
    assert (np.mean(rates, axis=0) <= 0.1 + 3 * error).all()
    assert np.mean(pooled) > 0.15  # a single threshold would break the promise for the widest group


def test_mondrian_answers_tensors_with_tensors() -> None:
    scores, groups = map(torch.from_numpy, grouped(300, 0))
    mondrian = MondrianThreshold(scores.float(), groups)
    p_values = mondrian.p_values(scores.float(), groups)
    assert p_values.dtype == torch.float32
    assert torch.equal(mondrian.is_ood(scores.float(), groups), p_values <= 0.05)


@pytest.mark.parametrize(
    ("scores", "groups", "message"),
    [
        ([], [], "no calibration scores"),
        ([*range(30)], [0] * 28 + [7] * 2, "group 7: 2 calibration scores are too few"),
        ([*range(30)], [0] * 29, r"shape \[30\] and groups \[29\]"),
        ([*range(30)], ["shoe"] * 30, "groups have dtype <U4"),
        ([*range(30)], [0.5] * 30, "groups have dtype float64"),
    ],
)
def test_mondrian_refuses_unusable_groups(scores: list[float], groups: list[int], message: str) -> None:
    with pytest.raises(InputError, match=message):
        MondrianThreshold(scores, groups)


def test_mondrian_refuses_a_group_it_was_not_calibrated_for() -> None:
    with pytest.raises(InputError, match=r"group 4 has no threshold.*known: \[0\]"):
        MondrianThreshold([*range(30)], [0] * 30).p_values([1.0, 2.0], [0, 4])


@given(
    p_values=st.lists(st.integers(1, 40).map(lambda k: k / 40) | st.floats(0, 1), min_size=1, max_size=40),
    q=st.floats(0.01, 0.99),
)
def test_benjamini_hochberg_selects_what_scipy_selects(p_values: list[float], q: float) -> None:
    adjusted = false_discovery_control(p_values)
    assume(np.abs(adjusted - q).min() > 1e-9)  # the two round differently at equality
    np.testing.assert_array_equal(benjamini_hochberg(p_values, q), adjusted <= q)


def test_benjamini_hochberg_answers_tensors_with_tensors() -> None:
    mask = benjamini_hochberg(torch.tensor([0.9, 0.01]), q=0.1)
    assert torch.equal(mask, torch.tensor([False, True]))
    assert not benjamini_hochberg(torch.tensor([0.9, 0.8]), q=0.1).any()
    assert benjamini_hochberg([], q=0.1).shape == (0,)


def test_benjamini_hochberg_bounds_the_false_discovery_rate_of_conformal_p_values() -> None:
    rng, q = np.random.default_rng(0), 0.2
    false_share, found = [], []
    for _ in range(500):
        strange = np.arange(200) < 40
        scores = rng.normal(size=200) + 3.0 * strange
        mask = benjamini_hochberg(ConformalThreshold(rng.normal(size=500)).p_values(scores), q)
        false_share.append((mask & ~strange).sum() / max(mask.sum(), 1))
        found.append((mask & strange).sum() / 40)
    assert np.mean(false_share) <= q + 3 * np.std(false_share) / np.sqrt(500)
    assert np.mean(found) > 0.7


@pytest.mark.parametrize(
    ("p_values", "q", "message"),
    [([1.5], 0.1, "p-value 1.5"), ([[0.5]], 0.1, r"shape \[1, 1\]")],
)
def test_benjamini_hochberg_refuses_invalid_probabilities(p_values: list[float], q: float, message: str) -> None:
    with pytest.raises(InputError, match=message):
        benjamini_hochberg(p_values, q)
