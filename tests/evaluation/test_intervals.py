"""Exact binomial intervals against scipy's test and their own promise."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom, binomtest

from besnn.errors import InputError
from besnn.evaluation import binomial_interval


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 500), st.data(), st.sampled_from([0.5, 0.9, 0.95, 0.99]))
def test_against_scipy(trials: int, data: st.DataObject, level: float) -> None:
    successes = data.draw(st.integers(0, trials))
    expected = binomtest(successes, trials).proportion_ci(level, method="exact")
    low, high = binomial_interval(successes, trials, level)
    assert low == pytest.approx(expected.low, abs=1e-9)
    assert high == pytest.approx(expected.high, abs=1e-9)


@pytest.mark.parametrize("rate", [0.01, 0.05, 0.5, 0.93])
def test_covers_the_true_rate(rate: float) -> None:
    trials = 80
    intervals = [binomial_interval(successes, trials) for successes in range(trials + 1)]
    coverage = sum(binom.pmf(k, trials, rate) for k, (low, high) in enumerate(intervals) if low <= rate <= high)
    assert coverage >= 0.95


@pytest.mark.parametrize(
    ("arguments", "words"),
    [((5, 4), "5 successes in 4 trials"), ((-1, 4), "-1 successes"), ((0, 0), "0 trials"), ((1, 4, 1.0), "level=1.0")],
)
def test_wrong_counts_are_named(arguments: tuple[int, ...], words: str) -> None:
    with pytest.raises(InputError, match=words):
        binomial_interval(*arguments)
