"""Bootstrap intervals: the fast figures equal the slow ones, the seed decides, the coverage is sane."""

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from besnn.errors import InputError
from besnn.evaluation import accuracy, bootstrap_interval, ood_intervals, ood_metrics
from besnn.evaluation.bootstrap import metrics_of_counts

counts = st.lists(st.integers(0, 30), min_size=6, max_size=6).filter(any)


@settings(deadline=None, max_examples=60)
@given(counts, counts)
def test_metrics_of_counts_equal_ood_metrics(in_counts: list[int], out_counts: list[int]) -> None:
    values = np.arange(6.0)
    expected = ood_metrics(np.repeat(values, in_counts), np.repeat(values, out_counts))
    for name, figure in metrics_of_counts(np.array(in_counts), np.array(out_counts)).items():
        assert figure == pytest.approx(expected[name], abs=1e-12), name


def test_the_fast_intervals_equal_the_general_ones() -> None:
    """Both draw the same rows from the same seed, so they must agree to rounding."""
    generator = np.random.default_rng(1)
    inside, outside = generator.normal(0, 1, 60).round(1), generator.normal(1, 1, 40).round(1)
    fast = ood_intervals(inside, outside, resamples=40, seed=9)
    assert set(fast) == set(ood_metrics(inside, outside)) - {"n_in", "n_out"}
    for name, interval in fast.items():
        slow = bootstrap_interval(lambda a, b, name=name: ood_metrics(a, b)[name], inside, outside, resamples=40, seed=9)
        assert interval == pytest.approx(slow), name


def test_auroc_interval_covers_the_true_value_about_as_often_as_it_says() -> None:
    truth, hits, repeats = norm.cdf(1 / np.sqrt(2)), 0, 120
    for seed in range(repeats):
        generator = np.random.default_rng(seed)
        low, high = ood_intervals(generator.normal(0, 1, 150), generator.normal(1, 1, 150), resamples=200, level=0.9)["auroc"]
        hits += low <= truth <= high
    assert 0.8 <= hits / repeats <= 0.98  # three standard errors around 0.9


def test_paired_samples_are_redrawn_together() -> None:
    """Were labels and probabilities drawn apart, accuracy would fall to a half."""
    labels = np.arange(400) % 2
    probabilities = np.eye(2)[labels]
    probabilities[:40] = probabilities[:40, ::-1]
    low, high = bootstrap_interval(accuracy, labels, probabilities, paired=True, resamples=300)
    assert 0.85 < low < 0.9 < high < 0.95


def test_same_seed_same_interval() -> None:
    inside, outside = np.random.default_rng(0).normal(size=(2, 50))
    first, again, other = (ood_intervals(inside, outside, resamples=30, seed=seed) for seed in (1, 1, 2))
    assert first == again
    assert first != other


def test_ten_thousand_against_ten_thousand_is_fast() -> None:
    inside, outside = np.random.default_rng(0).normal(size=(2, 10_000))
    start = time.perf_counter()
    ood_intervals(inside, outside, resamples=200)
    assert time.perf_counter() - start < 5


def test_wrong_settings_are_named() -> None:
    with pytest.raises(InputError, match="resamples=0"):
        ood_intervals([0.0], [1.0], resamples=0)
    with pytest.raises(InputError, match="level=95"):
        bootstrap_interval(lambda a, b: 0.0, [0.0], [1.0], level=95, resamples=2)
    with pytest.raises(InputError, match="sample 1 is empty"):
        bootstrap_interval(lambda a, b: 0.0, [0.0], [])
    with pytest.raises(InputError, match="sample 0 2, sample 1 1"):
        bootstrap_interval(accuracy, [0, 1], [[1.0, 0.0]], paired=True)
