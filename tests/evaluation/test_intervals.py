"""Binomial and bootstrap intervals against SciPy, slow oracles and their own coverage."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import betabinom, binomtest, norm

from besnn.detection.conformal import conformal_rank, false_alarm_range
from besnn.errors import InputError
from besnn.evaluation import binomial_interval, ood_intervals, ood_metrics


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 500), st.data(), st.sampled_from([0.5, 0.9, 0.95, 0.99]))
def test_against_scipy(trials: int, data: st.DataObject, level: float) -> None:
    successes = data.draw(st.integers(0, trials))
    expected = binomtest(successes, trials).proportion_ci(level, method="exact")
    low, high = binomial_interval(successes, trials, level)
    assert low == pytest.approx(expected.low, abs=1e-9)
    assert high == pytest.approx(expected.high, abs=1e-9)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [((5, 4), "5 successes in 4 trials"), ((-1, 4), "-1 successes"), ((0, 0), "0 trials"), ((1, 4, 1.0), "level=1.0")],
)
def test_wrong_counts_are_named(arguments: tuple[int, ...], words: str) -> None:
    with pytest.raises(InputError, match=words):
        binomial_interval(*arguments)


def test_bootstrap_intervals_are_percentiles_of_the_metrics_of_resampled_scores() -> None:
    generator = np.random.default_rng(1)
    inside, outside = generator.normal(0, 1, 60).round(1), generator.normal(1, 1, 40).round(1)
    found = ood_intervals(inside, outside, resamples=40, seed=9)
    assert set(found) == set(ood_metrics(inside, outside)) - {"n_in", "n_out"}
    generator = np.random.default_rng(9)
    drawn = [ood_metrics(*(each[generator.integers(0, len(each), len(each))] for each in (inside, outside))) for _ in range(40)]
    for name, interval in found.items():
        assert interval == pytest.approx(np.percentile([figures[name] for figures in drawn], [2.5, 97.5])), name


def test_auroc_interval_covers_the_true_value_about_as_often_as_it_says() -> None:
    truth, hits, repeats = norm.cdf(1 / np.sqrt(2)), 0, 120
    for seed in range(repeats):
        generator = np.random.default_rng(seed)
        low, high = ood_intervals(generator.normal(0, 1, 150), generator.normal(1, 1, 150), resamples=200, level=0.9)["auroc"]
        hits += low <= truth <= high
    assert 0.8 <= hits / repeats <= 0.98  # three standard errors around 0.9


def test_same_seed_same_interval() -> None:
    inside, outside = np.random.default_rng(0).normal(size=(2, 50))
    first, again, other = (ood_intervals(inside, outside, resamples=30, seed=seed) for seed in (1, 1, 2))
    assert first == again
    assert first != other


def test_wrong_settings_are_named() -> None:
    with pytest.raises(InputError, match="resamples=0"):
        ood_intervals([0.0], [1.0], resamples=0)
    with pytest.raises(InputError, match="level=95"):
        ood_intervals([0.0], [1.0], level=95, resamples=2)


@given(n=st.integers(19, 400), alpha=st.sampled_from([0.05, 0.1, 0.3]), inputs=st.integers(1, 2000))
def test_the_range_of_false_alarms_against_scipy(n: int, alpha: float, inputs: int) -> None:
    rank = conformal_rank(n, alpha)
    oracle = betabinom(inputs, n + 1 - rank, rank)
    for level in (0.8, 0.95):
        low, high = false_alarm_range(n, rank, inputs, level)
        for count, tail in ((low, (1 - level) / 2), (high, (1 + level) / 2)):
            assert oracle.cdf(count) >= tail - 1e-9
            assert count == 0 or oracle.cdf(count - 1) < tail + 1e-9


@pytest.mark.parametrize(("n", "inputs"), [(20, 150), (200, 600)])
def test_honest_evaluations_leave_the_range_of_false_alarms_as_often_as_it_says(n: int, inputs: int) -> None:
    generator = np.random.default_rng(0)
    rank = conformal_rank(n, 0.05)
    low, high = false_alarm_range(n, rank, inputs)
    thresholds = np.sort(generator.normal(size=(2000, n)), axis=1)[:, rank - 1]
    alarms = np.array([np.sum(generator.normal(size=inputs) > threshold) for threshold in thresholds])
    assert np.mean(alarms > high) <= 0.025 + 3 * np.sqrt(0.025 / 2000)
    assert np.mean(alarms < low) <= 0.025 + 3 * np.sqrt(0.025 / 2000)
    # A binomial interval, which takes the threshold as exact, would blame the data several times as often.
    assert np.mean([binomial_interval(int(count), inputs).low > 0.05 for count in alarms[:1000]]) > 0.06
