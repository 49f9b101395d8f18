"""Estimates by 8-bit codes: whole numbers are multiplied exactly, and rounding to them is bounded."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from besnn.detection.densities import neighbour_search
from besnn.detection.densities.neighbour_search import CodeEstimator, Estimates, codes_work

pytestmark = pytest.mark.skipif(not codes_work(), reason="needs a CPU that multiplies 8-bit integers (VNNI)")


def normal(n: int, d: int, seed: int) -> torch.Tensor:
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed))


def assert_bounded(queries: torch.Tensor, rows: torch.Tensor, found: Estimates) -> None:
    """Every value lies where the triangle inequality puts it, given the true distance in float64."""
    distance = torch.cdist(queries.double(), rows.double(), compute_mode="donot_use_mm_for_euclid_dist") * found.scale.double()
    offset, blur, error = (part.double()[:, None] for part in (found.offset, found.blur, found.error))
    nearest = offset + (distance - blur).clamp(min=0).square() / 2 - error
    furthest = offset + (distance + blur).square() / 2 + error
    told = (error + blur).isfinite()
    values = found.values[:, : len(rows)].double()
    assert not (told & (values < nearest - found.rounding * nearest.abs())).any()
    assert not (told & (values > furthest + found.rounding * furthest.abs())).any()


@pytest.mark.parametrize("d", [1, 7, 512, 3000])
@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e12])
def test_the_bound_holds_and_is_not_vacuous(d: int, scale: float) -> None:
    queries, rows = scale * (5 + normal(20, d, 0)), scale * (5 + normal(300, d, 1))
    found = CodeEstimator(rows, 320)(queries)
    assert_bounded(queries, rows, found)
    ordinary = found.error.isfinite()
    assert ordinary.sum() > 10
    assert (found.blur < 0.1 * 2 * found.scale * scale * d**0.5)[ordinary].all()


@pytest.mark.parametrize("d", [3, 512, 3000])
def test_whole_numbers_are_multiplied_exactly(d: int) -> None:
    generator = torch.Generator().manual_seed(0)
    half = torch.randint(-127, 128, (50, d), generator=generator).float()
    half[0, 0] = 127
    rows = torch.cat([half, -half])  # their mean is 0 and the unit is 1: nothing is lost
    queries = rows[:9]
    found = CodeEstimator(rows, 100)(queries)
    exact = (queries.double()[:, None] - rows.double()).square().sum(dim=-1) / 2 + found.offset.double()[:, None]
    assert torch.equal(found.values, exact.to(torch.bfloat16)) or d > 512  # longer sums are rounded before the last rounding
    torch.testing.assert_close(found.values.double(), exact, rtol=found.rounding, atol=float(found.error.max()))


TINY = st.sampled_from([0.0, 1e-19, 1e-20, -3e-23, 1e-30, 1e-40])
NUMBERS = st.floats(-1e3, 1e3, width=32) | TINY | st.sampled_from([1e9, -1e9])


@settings(max_examples=100)
@given(data=arrays(np.float32, (7, 3), elements=NUMBERS) | arrays(np.float32, (7, 3), elements=TINY))
def test_the_bound_holds_for_any_numbers(data: np.ndarray) -> None:
    queries, rows = torch.from_numpy(data[:2]), torch.from_numpy(data[2:])
    found = CodeEstimator(rows, 5)(queries)
    assert_bounded(queries, rows, found)
    for column, row in enumerate(rows):
        larger = found.values[:, column] > found.largest((queries - row).square().sum(dim=1), 3)
        assert not larger[found.error.isfinite()].any()


def test_a_query_far_outside_has_no_bound_and_does_not_affect_others() -> None:
    queries, rows = normal(20, 64, 0), normal(300, 64, 1)
    alone = CodeEstimator(rows, 320)(queries)
    beside = CodeEstimator(rows, 320)(torch.cat([queries, torch.full((1, 64), 1e6)]))
    assert beside.error.isfinite().tolist() == [True] * 20 + [False]
    kth = alone.values.kthvalue(5, dim=1).values.float()
    again = beside.values[:20].kthvalue(5, dim=1).values.float()
    assert (beside.margin(torch.cat([again, again[:1]]))[:20] < 1.5 * alone.margin(kth)).all()


def test_further_columns_are_infinitely_far() -> None:
    values = CodeEstimator(normal(5, 3, 0), 8)(normal(2, 3, 1)).values
    assert values.isfinite().tolist() == [[True] * 5 + [False] * 3] * 2


def test_one_row_far_outside_leaves_too_few_codes_for_the_others() -> None:
    rows = normal(300, 64, 0)
    assert CodeEstimator(rows, 300).suits
    rows[17] *= 100
    assert not CodeEstimator(rows, 300).suits


@pytest.fixture
def asked_afresh():
    codes_work.cache_clear()
    yield
    codes_work.cache_clear()


class Missing:
    def __init__(self, *arguments: object, **named: object) -> None:
        raise AttributeError("there is no such operator")


class Wrong(CodeEstimator):
    def __call__(self, queries: torch.Tensor) -> Estimates:
        found = super().__call__(queries)
        return found._replace(values=found.values + 1000)


@pytest.mark.parametrize("estimator", [Missing, Wrong])
@pytest.mark.usefixtures("asked_afresh")
def test_codes_are_not_used_where_torch_lacks_them_or_multiplies_otherwise(estimator, monkeypatch) -> None:
    monkeypatch.setattr(neighbour_search, "CodeEstimator", estimator)
    assert not codes_work()


@pytest.mark.usefixtures("asked_afresh")
def test_codes_are_not_used_without_the_instruction(monkeypatch) -> None:
    monkeypatch.setattr(torch.cpu, "_is_vnni_supported", lambda: False)
    assert not codes_work()


def test_does_not_depend_on_the_default_dtype() -> None:
    rows = normal(300, 64, 0)
    expected = CodeEstimator(rows, 320)(rows).values
    torch.set_default_dtype(torch.float64)
    try:
        codes_work.cache_clear()
        assert codes_work()
        assert torch.equal(CodeEstimator(rows, 320)(rows).values, expected)
    finally:
        torch.set_default_dtype(torch.float32)
