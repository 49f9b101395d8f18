"""The blocked search against brute force in float64, with coarse products, ties and duplicates."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from sklearn.neighbors import NearestNeighbors

from besnn.detection import search
from besnn.detection.search import kth_nearest_squared_distance


def brute_force(queries: torch.Tensor, rows: torch.Tensor, k: int) -> torch.Tensor:
    differences = queries.double()[:, None] - rows.double()
    return differences.square().sum(dim=-1).kthvalue(k, dim=1).values


def clustered(n: int, d: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    centres = 3 * torch.randn(5, d, generator=torch.Generator().manual_seed(99))
    return centres[torch.randint(5, (n,), generator=generator)] + torch.randn(n, d, generator=generator)


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "ROW_BLOCK", 37)
    monkeypatch.setattr(search, "QUERY_BLOCK", 11)
    monkeypatch.setattr(search, "RERANK_ELEMENTS", 500)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("k", [1, 5, 13, 40, 200])
def test_blocks_change_nothing(k: int) -> None:
    queries, rows = clustered(50, 8, 0), clustered(200, 8, 1)
    torch.testing.assert_close(
        kth_nearest_squared_distance(queries, rows, k), brute_force(queries, rows, k).float(), rtol=1e-6, atol=1e-6
    )


def test_equals_scikit_learn_in_high_dimension() -> None:
    queries, rows = clustered(100, 300, 0), clustered(3000, 300, 1)
    distances, _ = NearestNeighbors(n_neighbors=20, algorithm="brute").fit(rows.double().numpy()).kneighbors(queries.double())
    found = kth_nearest_squared_distance(queries, rows, 20).sqrt()
    np.testing.assert_allclose(found, distances[:, -1], rtol=1e-5)


@pytest.mark.parametrize("k", [1, 20, 60])
def test_stays_exact_with_coarse_products(k: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU that multiplies in bfloat16: the errors swap neighbours, and the answer must not notice."""
    queries, rows = clustered(64, 64, 0), clustered(2000, 64, 1)
    precise = torch.addmm

    def coarse(bias: torch.Tensor, a: torch.Tensor, b: torch.Tensor, *, alpha: float) -> torch.Tensor:
        if a.dtype == torch.float64:
            return precise(bias, a, b, alpha=alpha)
        return precise(bias, a.bfloat16().float(), b.bfloat16().float(), alpha=alpha)

    monkeypatch.setattr(torch, "addmm", coarse)
    expected = brute_force(queries, rows, k).float()
    estimates, _ = search._nearest(queries, rows, k)
    assert (estimates[:, -1] - expected).abs().max() > 1e-2  # the products alone are wrong
    torch.testing.assert_close(kth_nearest_squared_distance(queries, rows, k), expected, rtol=1e-6, atol=1e-6)


def test_finds_near_duplicates_far_from_the_origin() -> None:
    """‖q‖² + ‖r‖² − 2 q·r cancels there: in float32 the product alone says anything."""
    queries = 1000 + clustered(20, 16, 0)
    rows = torch.cat([queries + 1e-3, 1000 + clustered(300, 16, 1)])
    torch.testing.assert_close(
        kth_nearest_squared_distance(queries, rows, 1), brute_force(queries, rows, 1).float(), rtol=1e-4, atol=0
    )


WHOLE = st.integers(-2, 2).map(float)


@settings(max_examples=50)
@given(
    queries=arrays(np.float32, (10, 3), elements=WHOLE),
    rows=arrays(np.float32, (60, 3), elements=WHOLE),
    k=st.integers(1, 60),
)
def test_ties_and_duplicates(queries: torch.Tensor, rows: torch.Tensor, k: int) -> None:
    queries, rows = torch.as_tensor(queries), torch.as_tensor(rows)
    assert torch.equal(kth_nearest_squared_distance(queries, rows, k), brute_force(queries, rows, k).float())


def test_an_empty_batch_has_an_empty_answer() -> None:
    assert kth_nearest_squared_distance(torch.empty(0, 3), torch.ones(5, 3), 2).shape == (0,)
