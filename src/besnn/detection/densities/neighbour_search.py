"""Exact k-nearest-neighbour distances: coarse estimates of all of them, then a second look at the few that matter.

An estimate is within a known error of the distance. So rows whose estimates are more than twice that error apart are in
their true order, and only the rows so close to the k-th estimate have to be measured: the result is exact by construction.
"""

import torch
from torch import Tensor

from besnn.detection.codes import CodeEstimator, codes_work
from besnn.detection.estimates import DistanceEstimator, Estimates
from besnn.detection.workspace import rows_at_once

GROUP = 32  # columns of which only the nearest is looked at first; a power of two
GROUPS_A_NEIGHBOUR = 4  # with so many groups for each of k, hardly two of the k nearest share one
ENOUGH_QUERIES = 1000  # to judge an estimator by
MOST_SPARE = 2048  # a query with so many candidates more than k needs better estimates
# Sorting like floats from 0 up, and much faster on CPUs. Negative numbers all sort below; here they are 0 but for errors.
SORTABLE = {torch.bfloat16: torch.int16, torch.float32: torch.int32, torch.float64: torch.int64}

Estimator = CodeEstimator | DistanceEstimator


def kth_nearest_squared_distance(queries: Tensor, rows: Tensor, k: int) -> Tensor:
    """‖q − r‖² to the k-th nearest row r of every query q, exact to float32's rounding.

    Args:
        queries: `[batch, d]`, float32.
        rows: `[n, d]`, float32, n ≥ k.
        k: which neighbour, from 1.

    Returns:
        `[batch]`.

    Example:
        >>> rows = torch.tensor([[0.0], [1.0], [5.0]])
        >>> kth_nearest_squared_distance(torch.tensor([[1.0]]), rows, k=2)
        tensor([1.])
    """
    return NeighbourSearch(rows).kth_squared_distance(queries, k)


def fast_types(device: torch.device) -> tuple[torch.dtype, ...]:
    """The types of numbers whose products find neighbours on a device, the fastest and roughest first."""
    if device.type == "cuda":
        return (torch.float16,)
    if device.type != "cpu":
        return (torch.float32,)
    finer = torch.bfloat16 if torch.cpu._is_avx512_bf16_supported() else torch.float32
    return (torch.int8, finer) if codes_work() else (finer,)


class NeighbourSearch:
    """Rows made ready to be searched again and again; takes a quarter to five quarters of their memory more, by `fast_types`.

    Args:
        rows: `[n, d]`, float32.
    """

    def __init__(self, rows: Tensor) -> None:
        self.rows = rows
        self._types = fast_types(rows.device)
        self._kept: dict[torch.dtype, Estimator] = {}
        self._asked = self._left_open = 0
        first = self._estimator(self._types[0])
        if isinstance(first, CodeEstimator) and not first.suits:
            self._types, self._kept = self._types[1:], {}

    def kth_squared_distance(self, queries: Tensor, k: int) -> Tensor:
        """‖q − r‖² to the k-th nearest row of queries `[batch, d]`, on the rows' device: `[batch]`."""
        first, *finer = self._types
        result = self._by_estimates(queries, k, first)
        if finer:
            self._judge_codes(len(queries), int(result.isnan().sum()))
        for dtype in (*finer, torch.float64, None):  # the last: without estimates
            unsettled = result.isnan().nonzero()[:, 0]
            if not len(unsettled):
                break
            few = queries[unsettled]
            result[unsettled] = self._by_estimates(few, k, dtype) if dtype else self._by_differences(few, k)
        return result

    def _judge_codes(self, asked: int, left_open: int) -> None:
        """Drops codes that leave most queries open: they cost more than they save. Strange inputs alone do not tell."""
        self._asked, self._left_open = self._asked + asked, self._left_open + left_open
        if self._asked >= ENOUGH_QUERIES and 2 * self._left_open > self._asked:
            self._types = self._types[-1:]

    def _estimator(self, dtype: torch.dtype) -> Estimator:
        """What estimates by numbers of a type; kept, but for the largest type, which is hardly ever needed."""
        if dtype in self._kept:
            return self._kept[dtype]
        columns = -(-len(self.rows) // GROUP) * GROUP
        made = CodeEstimator(self.rows, columns) if dtype == torch.int8 else DistanceEstimator(self.rows, dtype, columns)
        if dtype in self._types:
            self._kept[dtype] = made
        return made

    def _by_estimates(self, queries: Tensor, k: int, dtype: torch.dtype) -> Tensor:
        """The k-th squared distances by way of estimates; NaN for a query that they do not settle."""
        if not len(queries):
            return queries.new_empty(0)
        estimator = self._estimator(dtype)
        block = rows_at_once(queries.device, estimator.bytes_a_query)
        return torch.cat([_second_look(part, self.rows, k, estimator(part)) for part in queries.split(block)])

    def _by_differences(self, queries: Tensor, k: int) -> Tensor:
        """The k-th squared distances from all differences in float64: slow, whatever the data."""
        block = rows_at_once(queries.device, len(self.rows) * torch.float64.itemsize)
        rows = self.rows.double()
        distances = [
            torch.cdist(part.double(), rows, compute_mode="donot_use_mm_for_euclid_dist").kthvalue(k, dim=1).values
            for part in queries.split(block)
        ]
        return torch.cat(distances).square().to(queries.dtype)


def _second_look(queries: Tensor, rows: Tensor, k: int, estimates: Estimates) -> Tensor:
    """The k-th squared distances, NaN where not settled: only rows whose place by estimate is in doubt are measured.

    Those that seem near enough come first. They bound the k-th distance better than estimates do, so few others follow.
    """
    query, row, value, settled = _candidates(estimates, k)
    table = _table(query, value, len(queries), k)
    kth = table.topk(k, largest=False, sorted=False).values.amax(dim=1)
    lower = kth - estimates.margin(kth)
    certain = (table < lower[:, None]).sum(dim=1)
    seems_near = value <= kth[query]
    near = (seems_near & (lower[query] <= value)).nonzero()[:, 0]
    squared = queries.new_full(value.shape, torch.nan)
    squared[near] = _squared_distances(queries, rows, query[near], row[near])
    furthest = queries.new_zeros(len(queries)).scatter_reduce(0, query[near], squared[near], "amax")
    limit = estimates.largest(furthest, queries.shape[1])
    others = (~seems_near & (value <= limit[query])).nonzero()[:, 0]
    squared[others] = _squared_distances(queries, rows, query[others], row[others])
    measured = (~squared.isnan()).nonzero()[:, 0]
    ascending = _table(query[measured], squared[measured], len(queries), 1).sort(dim=1).values
    place = torch.where(settled, k - 1 - certain, 0)
    return torch.where(settled, ascending.gather(1, place[:, None])[:, 0], torch.nan)


def _candidates(estimates: Estimates, k: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """All rows that may be among the k nearest, and a few more, as pairs: query, row and estimate, in the queries' order.

    The fourth tensor, `[queries]`, tells which queries have them all; the others have none.
    """
    values = estimates.values
    group = GROUP if values.is_cuda else GROUP // 2  # CPUs take longer to look into one than to have more of them
    while group > 1 and values.shape[1] < group * GROUPS_A_NEIGHBOUR * k:
        group //= 2
    grouped = values.unflatten(1, (group, -1))  # a group is every so many-th column, so that like neighbours spread
    nearest = grouped.view(SORTABLE[values.dtype]).amin(dim=1).view(values.dtype).to(estimates.error.dtype)
    limit = _kth_at_most(nearest, k)
    limit = limit + estimates.margin(limit)
    settled = limit.isfinite() & ((nearest <= limit[:, None]).sum(dim=1) <= k + MOST_SPARE)
    limit = torch.where(settled, limit, -torch.inf)
    query, which = (nearest <= limit[:, None]).nonzero(as_tuple=True)
    inside = grouped[query, :, which].to(nearest.dtype)
    pair, member = (inside <= limit[query, None]).nonzero(as_tuple=True)
    query, row, value = query[pair], which[pair] + member * nearest.shape[1], inside[pair, member]
    count = _first_places(query, len(values)).diff()
    settled &= (k <= count) & (count <= k + MOST_SPARE)
    kept = settled[query].nonzero()[:, 0]
    return query[kept], row[kept], value[kept], settled


def _kth_at_most(nearest: Tensor, k: int) -> Tensor:
    """What the k-th smallest estimate of each query cannot exceed, by the nearest of each group: `[b, groups]` to `[b]`."""
    fold = nearest.shape[1] // (GROUPS_A_NEIGHBOUR * k)
    if fold > 1:
        nearest = nearest[:, : nearest.shape[1] // fold * fold].unflatten(1, (fold, -1)).amin(dim=1)
    return nearest.topk(k, dim=1, largest=False, sorted=False).values.amax(dim=1)


def _table(query: Tensor, value: Tensor, queries: int, width: int) -> Tensor:
    """Values, given in the queries' order, as one row for each query, `[queries, width or more]`, filled up with infinity."""
    first = _first_places(query, queries)
    place = torch.arange(len(query), device=query.device) - first[query]
    table = value.new_full((queries, max(width, int(first.diff().amax()))), torch.inf)
    table[query, place] = value
    return table


def _first_places(query: Tensor, queries: int) -> Tensor:
    """Where each of 0, 1, ..., queries would first stand in ascending numbers."""
    return torch.searchsorted(query, torch.arange(queries + 1, device=query.device))


def _squared_distances(queries: Tensor, rows: Tensor, query: Tensor, row: Tensor) -> Tensor:
    """Σ(q − r)² of pairs of indices."""
    row, order = row.sort()  # memory is read faster in its order
    chunk = rows_at_once(queries.device, 16 * queries.shape[1] * queries.itemsize)
    pairs = zip(query[order].split(chunk), row.split(chunk), strict=True)
    # index_select copies row by row, where indexing copies number by number: on CPUs much slower.
    sums = [rows.index_select(0, r).sub_(queries.index_select(0, q)).square_().sum(dim=1) for q, r in pairs]
    return torch.empty_like(row, dtype=queries.dtype).index_copy_(0, order, torch.cat(sums))
