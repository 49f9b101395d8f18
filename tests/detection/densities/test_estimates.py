"""The coarse estimates of distances err by no more than they say."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from besnn.detection.densities import neighbour_search
from besnn.detection.densities.neighbour_search import FloatEstimator

TYPES = [torch.float16, torch.float32]


@pytest.fixture(autouse=True)
def multiply_as_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU multiplies float16 exactly and adds in float32."""
    product = neighbour_search._product
    exactly = {torch.float16: torch.float32}
    monkeypatch.setattr(
        neighbour_search, "_product", lambda q, r: product(*(x.to(exactly.get(x.dtype, x.dtype)) for x in (q, r)))
    )


def excess(queries: torch.Tensor, rows: torch.Tensor, dtype: torch.dtype) -> float:
    """How far an estimate is outside its bound at worst, of the bound."""
    estimator = FloatEstimator(rows, dtype, len(rows))
    found = estimator(queries)
    truth = (queries.double()[:, None] - rows.double()).square().sum(dim=-1) / 2 * estimator.scale.double() ** 2
    error = found.error.double()[:, None]
    return float(((found.values.double() - truth).abs() / (error + found.rounding * (truth + error))).max())


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shift", [0.0, 1000.0])
@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e12])
def test_the_bound_holds_and_is_not_vacuous(dtype: torch.dtype, shift: float, scale: float) -> None:
    generator = torch.Generator().manual_seed(0)
    queries, rows = (scale * (shift + torch.randn(n, 100, generator=generator)) for n in (20, 500))
    assert excess(queries, rows, dtype) <= 1
    estimator = FloatEstimator(rows, dtype, len(rows))
    found = estimator(queries)
    assert (found.error < 4 * torch.finfo(dtype).eps * found.values.amax() + 1e-4 * found.values.amax()).all()


@pytest.mark.parametrize("precision", ["highest", "high", "medium"])
def test_the_bound_follows_how_coarsely_float32_is_multiplied(precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(0)
    queries, rows = torch.randn(20, 64, generator=generator), torch.randn(300, 64, generator=generator)
    monkeypatch.setattr(neighbour_search, "_product", lambda q, r: q.bfloat16().float() @ r.bfloat16().float().T)
    monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: precision)
    assert (excess(queries, rows, torch.float32) <= 1) == (precision == "medium")


TINY = st.sampled_from([0.0, 1e-19, 1e-20, -3e-23, 1e-30, 1e-40])  # squares underflow in float32, the last number nearly does
NUMBERS = st.floats(-1e3, 1e3, width=32) | TINY | st.sampled_from([1e9, -1e9])


@pytest.mark.parametrize("dtype", TYPES)
@settings(max_examples=40)
@given(data=arrays(np.float32, (7, 3), elements=NUMBERS) | arrays(np.float32, (7, 3), elements=TINY))
def test_the_bound_holds_for_any_numbers(dtype: torch.dtype, data: np.ndarray) -> None:
    queries, rows = torch.from_numpy(data[:2]), torch.from_numpy(data[2:])
    found = FloatEstimator(rows, dtype, 5)(queries)
    told = found.error.isfinite()  # a query far outside may overflow float16
    if told.any():
        assert not excess(queries[told], rows, dtype) > 1  # 0 of 0 is fine: all vectors equal
    for column, row in enumerate(rows):  # no row as near as a measured distance has a larger value
        squared = (queries - row).square().sum(dim=1)
        assert not (found.values[:, column] > found.largest(squared, 3))[told].any()


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("size", [1e-19, 1e-20, 1e-22])
def test_the_bound_covers_squares_that_underflow(dtype: torch.dtype, size: float) -> None:
    assert excess(torch.full((1, 50), size), torch.zeros(3, 50), dtype) <= 1


@pytest.mark.parametrize("dtype", TYPES)
def test_further_columns_are_infinitely_far(dtype: torch.dtype) -> None:
    values = FloatEstimator(torch.randn(5, 3), dtype, 8)(torch.randn(2, 3)).values
    assert values.isfinite().tolist() == [[True] * 5 + [False] * 3] * 2
    assert not values.isnan().any()


def test_a_query_that_overflows_has_no_finite_bound() -> None:
    queries = torch.tensor([[1e5, 0.0, 0.0], [1.0, 0.0, 0.0]])
    assert FloatEstimator(torch.randn(5, 3), torch.float16, 5)(queries).error.isfinite().tolist() == [False, True]
