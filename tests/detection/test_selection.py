"""Benjamini–Hochberg against SciPy, and its false-discovery rate on conformal p-values."""

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.stats import false_discovery_control

from besnn.detection import ConformalThreshold, benjamini_hochberg
from besnn.errors import InputError


@given(
    p_values=st.lists(st.integers(1, 40).map(lambda k: k / 40) | st.floats(0, 1), min_size=1, max_size=40),
    q=st.floats(0.01, 0.99),
)
def test_selects_what_scipy_selects(p_values: list[float], q: float) -> None:
    adjusted = false_discovery_control(p_values)
    assume(np.abs(adjusted - q).min() > 1e-9)  # the two round differently at equality
    np.testing.assert_array_equal(benjamini_hochberg(p_values, q), adjusted <= q)


def test_answers_tensors_with_tensors() -> None:
    mask = benjamini_hochberg(torch.tensor([0.9, 0.01]), q=0.1)
    assert torch.equal(mask, torch.tensor([False, True]))
    assert not benjamini_hochberg(torch.tensor([0.9, 0.8]), q=0.1).any()
    assert benjamini_hochberg([], q=0.1).shape == (0,)


def test_bounds_the_false_discovery_rate_of_conformal_p_values() -> None:
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
    [([0.5], 0.0, "q=0.0"), ([0.5], 1.0, "q=1.0"), ([1.5], 0.1, "p-value 1.5"), ([[0.5]], 0.1, r"shape \[1, 1\]")],
)
def test_refuses_what_is_no_probability(p_values: list[float], q: float, message: str) -> None:
    with pytest.raises(InputError, match=message):
        benjamini_hochberg(p_values, q)
