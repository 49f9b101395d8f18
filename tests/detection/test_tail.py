"""The tail probability that surprises come from."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from besnn.detection.tail import EmpiricalTail
from besnn.errors import InputError

references = hnp.arrays(np.float64, st.integers(2, 60), elements=st.floats(-10, 10)).filter(lambda a: np.ptp(a) > 1e-3)


@given(references)
def test_at_a_knot_the_surprise_is_that_of_the_share_at_least_as_high(reference):
    tail = EmpiricalTail(torch.from_numpy(reference))
    shares = [(1 + np.sum(reference >= knot)) / (1 + len(reference)) for knot in tail.knots.tolist()]
    np.testing.assert_allclose(tail.surprise(tail.knots).numpy(), -np.log(shares), rtol=1e-9, atol=1e-12)
    assert {reference.min(), reference.max()} <= set(tail.knots.tolist())


@given(references, st.floats(-20, 20), st.floats(0, 5))
def test_the_surprise_never_falls_as_the_score_rises(reference, score, step):
    low, high = EmpiricalTail(torch.from_numpy(reference)).surprise(torch.tensor([score, score + step], dtype=torch.float64))
    assert 0 <= low <= high


def test_a_rounding_error_is_no_leap_where_scores_nearly_tie():
    generator = torch.Generator().manual_seed(0)
    spread = 2 * torch.rand(700, generator=generator, dtype=torch.float64)
    saturated = math.log(10) - 1e-6 * torch.rand(300, generator=generator, dtype=torch.float64)
    tail = EmpiricalTail(torch.cat([spread, saturated]))
    near = saturated - 1e-7
    assert float((tail.surprise(saturated) - tail.surprise(near)).abs().max()) < 1e-4


def test_scores_that_differ_by_rounding_alone_are_all_alike():
    tail = EmpiricalTail(torch.tensor([2.3, 2.3000002]))
    low, high = tail.surprise(torch.tensor([2.3, 2.3000002]))
    assert float(high - low) < 0.05


@pytest.mark.parametrize("reference", [[1.0], [1.0, 1.0], [0.0, float("nan")]])
def test_references_that_tell_nothing_are_refused(reference):
    with pytest.raises(InputError, match="reference scores"):
        EmpiricalTail(torch.tensor(reference))
