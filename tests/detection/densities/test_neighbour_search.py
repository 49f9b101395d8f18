"""The search against brute force in float64, whatever estimates it starts from, with ties, duplicates and odd scales."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from sklearn.neighbors import NearestNeighbors

from besnn.detection.densities import neighbour_search
from besnn.detection.densities.neighbour_search import NeighbourSearch, codes_work, fast_types

EIGHT_BITS = pytest.param((torch.int8, torch.float32), marks=pytest.mark.skipif(not codes_work(), reason="needs VNNI"))
TYPES = [(torch.float16,), (torch.float32,), EIGHT_BITS]


def brute_force(queries: torch.Tensor, rows: torch.Tensor, k: int) -> torch.Tensor:
    differences = queries.double()[:, None] - rows.double()
    return differences.square().sum(dim=-1).kthvalue(k, dim=1).values.float()


def kth_nearest_squared_distance(queries: torch.Tensor, rows: torch.Tensor, k: int) -> torch.Tensor:
    return NeighbourSearch(rows).kth_squared_distance(queries, k)


def assert_exact(queries: torch.Tensor, rows: torch.Tensor, k: int) -> None:
    expected = brute_force(queries, rows, k)
    for few in (0, len(queries)):  # all at once, and one by one
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(neighbour_search, "FEW_QUERIES", few)
            torch.testing.assert_close(kth_nearest_squared_distance(queries, rows, k), expected, rtol=1e-6, atol=1e-37)


def by_estimates_alone(queries: torch.Tensor, rows: torch.Tensor, k: int) -> torch.Tensor:
    ready = NeighbourSearch(rows)
    return ready._by_estimates(queries, k, ready._types[0])


def clustered(n: int, d: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    centres = 3 * torch.randn(5, d, generator=torch.Generator().manual_seed(99))
    return centres[torch.randint(5, (n,), generator=generator)] + torch.randn(n, d, generator=generator)


@pytest.fixture(autouse=True, params=TYPES, ids=str)
def first_estimates(request: pytest.FixtureRequest) -> Iterator[None]:
    """Every test runs with each type of estimates; float16 is multiplied as on a GPU: exactly, added in float32."""
    product = neighbour_search._product
    exactly = {torch.float16: torch.float32}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(neighbour_search, "fast_types", lambda device: request.param)
        patch.setattr(
            neighbour_search, "_product", lambda q, r: product(*(x.to(exactly.get(x.dtype, x.dtype)) for x in (q, r)))
        )
        yield


@pytest.mark.parametrize("k", [1, 5, 40, 200])
def test_blocks_change_nothing(k: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbour_search, "CPU_BYTES", 20_000)
    assert_exact(clustered(50, 8, 0), clustered(201, 8, 1), k)


@pytest.mark.parametrize("k", [1, 20, 60])
def test_estimates_settle_ordinary_queries(k: int) -> None:
    queries, rows = clustered(64, 64, 0), clustered(3000, 64, 1)
    found = by_estimates_alone(queries, rows, k)
    torch.testing.assert_close(found, brute_force(queries, rows, k), rtol=1e-6, atol=0)


def test_what_estimates_do_not_settle_is_found_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbour_search, "MOST_SPARE", 0)
    queries, rows = clustered(40, 3, 0), clustered(2000, 3, 1).repeat(2, 1)  # the 9th and the 10th are one row
    assert by_estimates_alone(queries, rows, 9).isnan().all()
    assert_exact(queries, rows, 9)


def test_codes_that_settle_few_queries_are_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbour_search, "MOST_SPARE", 0)
    monkeypatch.setattr(neighbour_search, "ENOUGH_QUERIES", 80)
    queries, rows = clustered(40, 64, 0), clustered(2000, 64, 1).repeat(2, 1)
    ready = NeighbourSearch(rows)
    first = ready._types
    for kept in (first, first[-1:], first[-1:]):  # judged when eighty were asked
        torch.testing.assert_close(ready.kth_squared_distance(queries, 9), brute_force(queries, rows, 9), rtol=1e-6, atol=0)
        assert ready._types == kept


def test_a_few_unusual_queries_do_not_disable_the_codes() -> None:
    rows = clustered(3000, 64, 1)
    ready = NeighbourSearch(rows)
    before = ready._types
    strange = 50 * clustered(3, 64, 2)
    for query in strange.split(1):
        torch.testing.assert_close(ready.kth_squared_distance(query, 5), brute_force(query, rows, 5), rtol=1e-6, atol=0)
    assert ready._types == before


def test_equals_scikit_learn_in_high_dimension() -> None:
    queries, rows = clustered(100, 300, 0), clustered(3000, 300, 1)
    distances, _ = NearestNeighbors(n_neighbors=20, algorithm="brute").fit(rows.double().numpy()).kneighbors(queries.double())
    found = kth_nearest_squared_distance(queries, rows, 20).sqrt()
    np.testing.assert_allclose(found, distances[:, -1], rtol=1e-6)


@pytest.mark.parametrize("scale", [1e-17, 1e-6, 1e6, 1e17])
def test_any_scale(scale: float) -> None:
    assert_exact(scale * clustered(30, 16, 0), scale * clustered(2000, 16, 1), 7)


def test_queries_far_outside() -> None:
    queries = clustered(40, 16, 0) * torch.logspace(-20, 17, 40)[:, None]
    assert_exact(queries, clustered(2000, 16, 1), 7)


def test_a_row_far_outside() -> None:
    rows = clustered(2000, 16, 1)
    rows[17] *= 1e12
    assert_exact(clustered(40, 16, 0), rows, 7)


def test_near_duplicates_far_from_the_origin() -> None:
    queries = 1000 + clustered(20, 16, 0)
    assert_exact(queries, torch.cat([queries + 1e-3, 1000 + clustered(300, 16, 1)]), 1)


@pytest.mark.parametrize("k", [1, 100, 1100])
def test_many_equal_rows(k: int) -> None:
    rows = torch.cat([torch.ones(1000, 4), torch.zeros(100, 4), clustered(900, 4, 1)])
    assert_exact(torch.cat([torch.ones(2, 4), torch.zeros(2, 4), clustered(3, 4, 0)]), rows, k)


def test_rows_that_are_queries_are_at_distance_zero() -> None:
    rows = clustered(700, 20, 0)
    assert kth_nearest_squared_distance(rows, rows, 1).eq(0).all()
    assert_exact(rows[:50], rows, 2)


def test_one_long_query() -> None:
    assert_exact(clustered(1, 777, 0), clustered(3000, 777, 1), 10)


WHOLE = st.integers(-2, 2).map(float)


@settings(max_examples=25)
@given(
    queries=arrays(np.float32, (10, 3), elements=WHOLE),
    rows=arrays(np.float32, (60, 3), elements=WHOLE),
    k=st.integers(1, 60),
)
def test_ties_and_duplicates(queries: torch.Tensor, rows: torch.Tensor, k: int) -> None:
    queries, rows = torch.as_tensor(queries), torch.as_tensor(rows)
    assert torch.equal(kth_nearest_squared_distance(queries, rows, k), brute_force(queries, rows, k))


@settings(max_examples=25)
@given(seed=st.integers(0, 2**31), n=st.integers(1, 300), d=st.integers(1, 9), exponent=st.integers(-15, 15), data=st.data())
def test_any_shape(seed: int, n: int, d: int, exponent: int, data: st.DataObject) -> None:
    k = data.draw(st.integers(1, n))
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(n, d, generator=generator) * torch.randn(n, 1, generator=generator).exp() * 10.0**exponent
    queries = torch.cat([rows[:3], torch.randn(5, d, generator=generator), torch.zeros(1, d)])
    assert_exact(queries, rows, k)


def test_an_empty_batch_has_an_empty_answer() -> None:
    assert kth_nearest_squared_distance(torch.empty(0, 3), torch.ones(5, 3), 2).shape == (0,)


@pytest.mark.parametrize(("codes", "expected"), [(True, (torch.int8, torch.float32)), (False, (torch.float32,))])
def test_coarse_products_are_chosen_where_the_hardware_multiplies_them(
    codes: bool, expected: tuple[torch.dtype, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(neighbour_search, "codes_work", lambda: codes)
    assert fast_types(torch.device("cpu")) == expected
    assert fast_types(torch.device("cuda")) == (torch.float16,)
    assert fast_types(torch.device("mps")) == (torch.float32,)


@pytest.mark.parametrize("k", [1, 5])
def test_queries_said_to_be_within_a_distance_are(k: int) -> None:
    queries, rows = clustered(200, 8, 0), clustered(300, 8, 1)
    search, exact = NeighbourSearch(rows), brute_force(queries, rows, k)
    for squared in exact[:5].tolist():  # at exactly such a distance rounding decides
        near = search.within(queries, k, squared)
        assert not (near & (search.kth_squared_distance(queries, k) > squared)).any()
    assert search.within(queries, k, 1.5 * float(exact.max())).float().mean() > 0.9
    assert not search.within(queries, k, 0.0).any()
