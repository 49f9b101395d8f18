"""Exact k-nearest-neighbour distances: estimate all of them coarsely, then measure the few that matter.

An estimate comes with a bound on its error. Rows whose estimates differ by more than twice that bound are in their true order,
so only rows near the k-th estimate are measured, and the result is exact by construction. Estimates come from one matrix
product in the type that the hardware multiplies fastest: 8-bit integers on CPUs with VNNI, float16 on GPUs, else float32.
Queries that the estimates leave open are measured against all rows in float64.
"""

import math
from functools import cache, cached_property
from typing import NamedTuple

import torch
from torch import Tensor

CPU_BYTES = 30 * 2**20  # about the last cache, and below the 32 MiB from which the system maps new memory each time
GPU_SHARE = 32  # temporaries take one part in this many of a GPU's memory

GROUP = 32  # columns of which only the nearest is looked at first; a power of two
GROUPS_PER_NEIGHBOUR = 4  # with this many groups for each of k, hardly two of the k nearest share one
MOST_SPARE = 2048  # a query with this many candidates more than k needs better estimates
FEW_QUERIES = 4  # up to this many are searched one by one, in far fewer operations
SOME_ROWS = 256  # a share of the rows of at least this many is asked first whether a query is near
ENOUGH_QUERIES = 1000  # to judge an estimator by
# These types sort like floats from 0 up, and much faster on CPUs. Negative values all sort below; here they are 0 up to errors.
SORTABLE = {torch.bfloat16: torch.int16, torch.float32: torch.int32}

SLACK = 1.01  # the bounds' own arithmetic is rounded, too
PARTS = 3  # numbers of the coarse type that together hold a squared norm to float32's precision
ALIGNMENT = 8  # fast multiplication needs lengths that are multiples of this
# How a product of float32 may round its factors, by torch.set_float32_matmul_precision: not, TensorFloat-32, bfloat16.
FACTOR_ROUNDING = {"highest": 0.0, "high": 2.0**-11, "medium": 2.0**-8}

LARGEST_CODE = 127  # a code is an integer from -127 to 127
CODE_SHIFT = 128  # the instruction multiplies signed codes by unsigned ones: queries are shifted
COARSEST_CODES = 1 / 32  # of the rows' norm: with a larger rounding error too many rows would be in doubt
MOST_DIMENSIONS = 2**16  # this many products of codes still add up in 32 bits

EXACT = torch.finfo(torch.float32)


def rows_at_once(device: torch.device, row_bytes: int) -> int:
    """Return how many rows of temporaries, each of `row_bytes` bytes, to make at once; at least 1."""
    on_gpu = device.type == "cuda"
    available = torch.cuda.get_device_properties(device).total_memory // GPU_SHARE if on_gpu else CPU_BYTES
    return max(1, available // row_bytes)


class Estimates(NamedTuple):
    """`values`, `[queries, columns]`, near ‖q − r‖²/2 in units of their own, and how near.

    Before it was rounded by a factor of at most 1 ± `rounding`, a value was within `error`, `[queries]`, of
    `offset` + ‖q̂ − r̂‖²/2, and ‖q̂ − r̂‖ is within `blur` of ‖q − r‖, all multiplied by `scale`.
    """

    values: Tensor
    error: Tensor
    rounding: float
    offset: Tensor
    blur: Tensor
    scale: Tensor

    def margin(self, kth: Tensor) -> Tensor:
        """Return how far from the k-th smallest value, `[queries]`, a row's value can be while its place is in doubt."""
        error = self.error + 1.1 * self.rounding * (kth.abs() + 2 * self.error)
        distance = (2 * (kth - self.offset + error).clamp(min=0)).sqrt()
        # For rows in the wrong order ‖q̂ − r̂‖ differs by at most 2 blur: this is the difference of half the squares.
        spread = 2 * self.blur * (distance + self.blur)
        return 2 * error + (1 + 2.2 * self.rounding) * spread

    def largest(self, squared: Tensor, d: int) -> Tensor:
        """Return the largest value of a row no farther away than one whose Σ(q − r)² of d numbers was computed as `squared`."""
        distance = self.scale * (squared * (1 + (d + 8) * EXACT.eps) + d * EXACT.tiny).sqrt() + self.blur
        value = self.offset + distance.square() / 2 + SLACK * self.error
        return value + SLACK * self.rounding * value.abs()

    def smallest(self, squared: Tensor, d: int) -> Tensor:
        """Return the smallest value of a row whose Σ(q − r)² of d numbers is computed as more than `squared`."""
        least = (squared * (1 - (d + 8) * EXACT.eps) - d * EXACT.tiny).clamp(min=0)
        distance = (self.scale * least.sqrt() - self.blur).clamp(min=0)
        value = self.offset + distance.square() / 2 - SLACK * self.error
        return value - SLACK * self.rounding * value.abs()


class _Sizes(NamedTuple):
    """Of vectors: norm and half its square, and bounds on the error of the coarse vector and of the coarse half."""

    norm: Tensor
    half: Tensor
    loss: Tensor
    half_loss: Tensor

    def rounded(self, factor: float) -> "_Sizes":
        """Return the sizes of vectors whose numbers are rounded once more."""
        return self._replace(loss=self.loss + factor * self.norm, half_loss=self.half_loss + factor * self.half)


class FloatEstimator:
    """‖q − r‖²/2 = ‖q‖²/2 + ‖r‖²/2 − q·r of many pairs, as one product of longer vectors in float16 or float32.

    Vectors are centred, because errors grow with norms, and scaled so that float16 holds them. The error bound is rigorous:
    Cauchy–Schwarz on the measured rounding of the vectors, and each addition of the product rounded the wrong way.
    Where a query overflows the type, the bound is infinite or NaN. Rows are `[n, d]`, float32; of the `columns`, those after
    the n-th estimate an infinite distance.
    """

    def __init__(self, rows: Tensor, dtype: torch.dtype, columns: int) -> None:
        self.dtype = dtype
        self.centre = rows.mean(dim=0)
        largest = torch.maximum(rows.amax(dim=0) - self.centre, self.centre - rows.amin(dim=0)).amax()
        exponent = torch.frexp(largest).exponent.clamp(-100, 100)
        self.scale = torch.ldexp(torch.ones_like(largest), -exponent)  # brings the largest number to at most 1
        self.rows, sizes = self._lengthened(rows, columns)  # r, ‖r‖²/2, 1
        self.rows[len(rows) :, rows.shape[1]] = torch.inf
        self.largest = _Sizes(*(size.amax() for size in sizes))

    @property
    def bytes_per_query(self) -> int:
        """The memory that the estimates for one query take."""
        return len(self.rows) * torch.float32.itemsize

    def __call__(self, queries: Tensor) -> Estimates:
        """Estimate distances from queries `[b, d]`, float32."""
        d = queries.shape[1]
        long, sizes = self._lengthened(queries, len(queries))
        long[:, :d].neg_()
        long[:, d : d + 2 * PARTS] = long[:, d : d + 2 * PARTS].roll(PARTS, dims=1)  # -q, 1, ‖q‖²/2
        values = _product(long, self.rows)
        error = self._error(sizes, long.shape[1])
        exactly = torch.zeros_like(error)
        return Estimates(values, error, EXACT.eps / 2, exactly, exactly, self.scale)

    def _lengthened(self, vectors: Tensor, count: int) -> tuple[Tensor, _Sizes]:
        """Return each vector, half its squared norm in parts and as many ones, `[count, about d]`, zero beyond the last."""
        d = vectors.shape[1]
        long = vectors.new_zeros(count, -(-(d + 2 * PARTS) // ALIGNMENT) * ALIGNMENT, dtype=self.dtype)
        half_rounding = EXACT.eps * (d + 8)  # centring rounds each number, the norm adds up rounded squares
        underflow = self._underflow(d)
        sizes = []
        chunk = rows_at_once(vectors.device, 4 * d * torch.float32.itemsize)
        for raw, out in zip(vectors.split(chunk), long[: len(vectors)].split(chunk), strict=True):
            centred = (raw - self.centre).mul_(self.scale)
            out[:, :d] = centred
            norm = torch.linalg.vector_norm(centred, dim=1)
            loss = torch.linalg.vector_norm(centred.sub_(out[:, :d]), dim=1)
            rest = half = norm.square() / 2
            for part in range(d, d + PARTS):
                out[:, part] = rest
                rest = rest - out[:, part]
            half_loss = rest.abs() + half_rounding * half + underflow * (norm + underflow)
            sizes.append(_Sizes(norm + underflow, half, loss + EXACT.eps * norm + underflow, half_loss))
        long[: len(vectors), d + PARTS : d + 2 * PARTS] = 1
        return long, _Sizes(*(torch.cat(size) for size in zip(*sizes, strict=True)))

    def _underflow(self, d: int) -> Tensor:
        """Return the error in the length of a vector of d numbers from numbers that are too small for the type.

        Numbers below the smallest normal one may be flushed to 0. Half a squared norm adds up d squares, and an estimate
        about d products, each of which may vanish, and each sum of them: together they take less than 3 (d + 8) of that
        number from the squared length of the vector. A difference may vanish before it is scaled.
        """
        return math.sqrt(d) * EXACT.tiny * self.scale.clamp(min=1) + math.sqrt(3 * (d + 8) * EXACT.tiny)

    def _error(self, queries: _Sizes, additions: int) -> Tensor:
        factor = FACTOR_ROUNDING[torch.get_float32_matmul_precision()] if self.dtype == torch.float32 else 0.0
        queries, rows = queries.rounded(factor), self.largest.rounded(factor)
        factors = queries.loss * (rows.norm + rows.loss) + queries.norm * rows.loss
        sums = (queries.norm + queries.loss) * (rows.norm + rows.loss) + queries.half + rows.half
        # float16 is multiplied exactly and added in float32.
        return SLACK * (factors + EXACT.eps * additions * sums + queries.half_loss + rows.half_loss)


def _product(queries: Tensor, rows: Tensor) -> Tensor:
    """Return `queries @ rows.T`; float16 gives float32, because GPUs may otherwise add up in float16."""
    if queries.dtype == torch.float16:
        return torch.mm(queries, rows.T, out_dtype=torch.float32)
    return queries @ rows.T


class CodeEstimator:
    """‖q̂ − r̂‖²/2 of vectors rounded to integer multiples of one unit (8-bit codes), from exact products of integers.

    The bound is the triangle inequality: ‖q̂ − r̂‖ differs from ‖q − r‖ by at most ‖q̂ − q‖ + ‖r̂ − r‖, which are measured.
    The error shrinks with the distance, so even numbers this coarse separate neighbours from the rest. Rows are `[n, d]`,
    float32, on a CPU; of the `columns`, those after the n-th estimate an infinite distance. Where codes do not tell the rows
    apart well enough to be worthwhile, `suits` is false.
    """

    def __init__(self, rows: Tensor, columns: int) -> None:
        self.centre = rows.mean(dim=0)
        largest = torch.maximum(rows.amax(dim=0) - self.centre, self.centre - rows.amin(dim=0)).amax()
        self.scale = torch.where(largest > 0, LARGEST_CODE / largest, 1.0)
        codes, loss, self.half = self._codes(rows)
        self.loss = loss.amax()
        norm = (2 * self.half.mean()).sqrt()
        self.suits = rows.shape[1] <= MOST_DIMENSIONS and bool(self.loss <= COARSEST_CODES * norm)
        weights = codes.new_zeros(columns, rows.shape[1])
        weights[: len(rows)] = -codes
        self.rows = torch.ops.onednn.qlinear_prepack(weights, None)
        # What the shift of the queries adds is subtracted here.
        self.constant = rows.new_full((columns,), torch.inf)
        self.constant[: len(rows)] = self.half + CODE_SHIFT * codes.sum(dim=1, dtype=torch.int32)
        self.ones, self.zeros = rows.new_ones(columns), rows.new_zeros(columns, dtype=torch.int64)

    @property
    def bytes_per_query(self) -> int:
        """The memory that the estimates for one query take."""
        return len(self.constant) * torch.bfloat16.itemsize

    def __call__(self, queries: Tensor) -> Estimates:
        """Estimate distances from queries `[b, d]`, float32."""
        codes, loss, half = self._codes(queries)
        # The constant of a row fits into the product, ‖q̂‖²/2 of a query does not: all get the largest, and `offset` says by
        # how much that is too large. A query far outside would cost the others precision this way: it gets no bound.
        reach = torch.minimum(half.amax(), 4 * self.half.amax())
        shifted = (codes.to(torch.int16) + CODE_SHIFT).to(torch.uint8)
        values = torch.ops.onednn.qlinear_pointwise(
            shifted, 1.0, 0, self.rows, self.ones, self.zeros, self.constant + reach, 1.0, 0, torch.bfloat16, "none", [], ""
        )
        # The sum of products is exact. It is converted to float32 to be added to the constants, and rounded a few times.
        rounded = 8 * EXACT.eps * queries.shape[1] * LARGEST_CODE * (LARGEST_CODE + CODE_SHIFT)
        error = torch.where(half <= reach, rounded, torch.inf)
        return Estimates(values, error, torch.finfo(values.dtype).eps / 2, reach - half, loss + self.loss, self.scale)

    def _codes(self, vectors: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return codes `[n, d]`, a bound on their distance from the vectors and half their squared norm, in units, `[n]`."""
        d = vectors.shape[1]
        underflow = math.sqrt(d) * EXACT.tiny * self.scale.clamp(min=1)  # differences may be flushed before they are scaled
        parts = []
        for raw in vectors.split(rows_at_once(vectors.device, 4 * d * vectors.itemsize)):
            centred = (raw - self.centre).mul_(self.scale)
            norm = torch.linalg.vector_norm(centred, dim=1)
            rounded = centred.round().clamp_(-LARGEST_CODE, LARGEST_CODE)
            loss = torch.linalg.vector_norm(centred.sub_(rounded), dim=1)
            half = rounded.square().sum(dim=1, dtype=torch.float64).float() / 2
            parts.append((rounded.to(torch.int8), SLACK * (loss + EXACT.eps * norm + underflow), half))
        codes, loss, half = (torch.cat(part) for part in zip(*parts, strict=True))
        return codes, loss, half


@cache
def codes_work() -> bool:
    """Try out whether the processor has the instruction and torch the operators, which it does not document."""
    if not torch.cpu._is_vnni_supported():
        return False
    integers = [[127.0, -127.0], [-127.0, 127.0]]  # centred, so that nothing is rounded
    rows = torch.tensor(integers, dtype=torch.float32, device="cpu")  # whatever a user's defaults are
    try:
        estimates = CodeEstimator(rows, columns=2)(rows)
    except (AttributeError, RuntimeError, TypeError):  # other operators in another version
        return False
    half = (rows[:, None] - rows).square().sum(-1) / 2 + estimates.offset[:, None]
    return torch.allclose(estimates.values.float(), half, rtol=2**-7)


def fast_types(device: torch.device) -> tuple[torch.dtype, ...]:
    """Return the types whose products find neighbours on a device, the fastest and coarsest first."""
    if device.type == "cuda":
        return (torch.float16,)
    return (torch.int8, torch.float32) if device.type == "cpu" and codes_work() else (torch.float32,)


class NeighbourSearch:
    """Rows `[n, d]`, float32, prepared to be searched; they then take up to 125 % more memory."""

    def __init__(self, rows: Tensor) -> None:
        self.rows = rows
        self._types = fast_types(rows.device)
        self._estimators: dict[torch.dtype, CodeEstimator | FloatEstimator] = {}
        self._asked = self._left_open = 0
        first = self._estimator(self._types[0])
        if isinstance(first, CodeEstimator) and not first.suits:
            self._types, self._estimators = self._types[1:], {}

    def kth_squared_distance(self, queries: Tensor, k: int) -> Tensor:
        """Return ‖q − r‖² `[batch]` of float32 queries `[batch, d]` to the k-th nearest row, exact up to float32's rounding."""
        first, *finer = self._types
        result = self._by_estimates(queries, k, first)
        if finer:
            self._judge_codes(len(queries), int(result.isnan().sum()))
        for dtype in (*finer, None):  # the last: without estimates
            unsettled = result.isnan().nonzero()[:, 0]
            if not len(unsettled):
                break
            few = queries[unsettled]
            result[unsettled] = self._by_estimates(few, k, dtype) if dtype else self._by_differences(few, k)
        return result

    def within(self, queries: Tensor, k: int, squared: float) -> Tensor:
        """Return `[batch]` whether `kth_squared_distance` is certainly at most `squared`, which estimates alone often tell.

        Where many rows are so near, some of them settle most queries.
        """
        if self._some is None:
            return self._within(queries, k, squared)
        near = self._some.within(queries, k, squared)
        far = (~near).nonzero()[:, 0]
        near[far] = self._within(queries[far], k, squared)
        return near

    @cached_property
    def _some(self) -> "NeighbourSearch | None":
        return NeighbourSearch(self.rows[:: len(self.rows) // SOME_ROWS]) if len(self.rows) >= 2 * SOME_ROWS else None

    def _within(self, queries: Tensor, k: int, squared: float) -> Tensor:
        estimator = self._estimator(self._types[0])
        block = rows_at_once(queries.device, estimator.bytes_per_query)
        limit = queries.new_tensor(squared)
        found = [limit.new_empty(0, dtype=torch.bool)]
        for part in queries.split(block) if len(queries) else ():
            estimates = estimator(part)
            _, nearest = _grouped(estimates.values, k)
            near = nearest < estimates.smallest(limit, queries.shape[1])[:, None]
            found.append(near.sum(dim=1) >= k)
        return torch.cat(found)

    def _judge_codes(self, asked: int, left_open: int) -> None:
        """Drop codes that leave most queries open and so cost more than they save; a few unusual inputs do not count."""
        self._asked, self._left_open = self._asked + asked, self._left_open + left_open
        if self._asked >= ENOUGH_QUERIES and 2 * self._left_open > self._asked:
            self._types = self._types[-1:]

    def _estimator(self, dtype: torch.dtype) -> CodeEstimator | FloatEstimator:
        if dtype not in self._estimators:
            columns = -(-len(self.rows) // GROUP) * GROUP
            codes = dtype == torch.int8
            self._estimators[dtype] = CodeEstimator(self.rows, columns) if codes else FloatEstimator(self.rows, dtype, columns)
        return self._estimators[dtype]

    def _by_estimates(self, queries: Tensor, k: int, dtype: torch.dtype) -> Tensor:
        """Return the k-th squared distances by way of estimates; NaN for queries that they leave open."""
        if not len(queries):
            return queries.new_empty(0)
        estimator = self._estimator(dtype)
        block = rows_at_once(queries.device, estimator.bytes_per_query)
        if len(queries) <= FEW_QUERIES:
            return torch.cat([_measure_one(query, self.rows, k, estimator(query)) for query in queries.split(1)])
        return torch.cat([_measure_candidates(part, self.rows, k, estimator(part)) for part in queries.split(block)])

    def _by_differences(self, queries: Tensor, k: int) -> Tensor:
        """Return the k-th squared distances from all differences in float64: slow, and exact for any data."""
        block = rows_at_once(queries.device, len(self.rows) * torch.float64.itemsize)
        rows = self.rows.double()
        distances = [
            torch.cdist(part.double(), rows, compute_mode="donot_use_mm_for_euclid_dist").kthvalue(k, dim=1).values
            for part in queries.split(block)
        ]
        return torch.cat(distances).square().to(queries.dtype)


def _measure_one(query: Tensor, rows: Tensor, k: int, estimates: Estimates) -> Tensor:
    """Return the k-th squared distance of one query, `[1]`, by measuring all rows that may be so near; NaN if too many."""
    values = estimates.values[0].to(estimates.error.dtype)
    kth = values.topk(k, largest=False, sorted=False).values.amax()
    limit = kth + estimates.margin(kth)
    candidates = (values <= limit).nonzero()[:, 0]
    if not limit.isfinite() or not k <= len(candidates) <= k + MOST_SPARE:
        return query.new_full((1,), torch.nan)
    squared = rows.index_select(0, candidates).sub_(query).square_().sum(dim=1)
    return squared.topk(k, largest=False, sorted=False).values.amax()[None]


def _measure_candidates(queries: Tensor, rows: Tensor, k: int, estimates: Estimates) -> Tensor:
    """Measure only rows whose place by estimate is in doubt; return the k-th squared distances, NaN where still open.

    Rows that seem near enough come first. They bound the k-th distance better than estimates do, so few others follow.
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
    farthest = queries.new_zeros(len(queries)).scatter_reduce(0, query[near], squared[near], "amax")
    limit = estimates.largest(farthest, queries.shape[1])
    others = (~seems_near & (value <= limit[query])).nonzero()[:, 0]
    squared[others] = _squared_distances(queries, rows, query[others], row[others])
    measured = (~squared.isnan()).nonzero()[:, 0]
    ascending = _table(query[measured], squared[measured], len(queries), 1).sort(dim=1).values
    place = torch.where(settled, k - 1 - certain, 0)
    return torch.where(settled, ascending.gather(1, place[:, None])[:, 0], torch.nan)


def _candidates(estimates: Estimates, k: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return all rows that may be among the k nearest, and a few more: query, row and estimate of each, in query order.

    The fourth tensor, `[queries]`, says which queries have all their candidates; the others have none.
    """
    values = estimates.values
    grouped, nearest = _grouped(values, k)
    nearest = nearest.to(estimates.error.dtype)
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


def _grouped(values: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return estimates `[b, columns]` in groups, `[b, members of each, groups]`, and the nearest of each, `[b, groups]`."""
    group = GROUP if values.is_cuda else GROUP // 2  # for CPUs more groups are cheaper than larger ones
    while group > 1 and values.shape[1] < group * GROUPS_PER_NEIGHBOUR * k:
        group //= 2
    grouped = values.unflatten(1, (group, -1))  # a group takes columns at equal intervals, so that similar rows spread
    sortable = values.view(SORTABLE[values.dtype])
    if values.is_cuda:
        return grouped, sortable.unflatten(1, (group, -1)).amin(dim=1).view(values.dtype)
    while group > 1:  # halves, because on CPUs `amin` is slow where few groups leave it short rows
        sortable, group = torch.minimum(*sortable.chunk(2, dim=1)), group // 2
    return grouped, sortable.view(values.dtype)


def _kth_at_most(nearest: Tensor, k: int) -> Tensor:
    """Return an upper bound on each query's k-th smallest estimate from the nearest of each group: `[b, groups]` to `[b]`."""
    fold = nearest.shape[1] // (GROUPS_PER_NEIGHBOUR * k)
    if fold > 1:
        nearest = nearest[:, : nearest.shape[1] // fold * fold].unflatten(1, (fold, -1)).amin(dim=1)
    return nearest.topk(k, dim=1, largest=False, sorted=False).values.amax(dim=1)


def _table(query: Tensor, value: Tensor, queries: int, width: int) -> Tensor:
    """Lay out values, given in query order, in one row per query, `[queries, width or more]`, padded with infinity."""
    first = _first_places(query, queries)
    place = torch.arange(len(query), device=query.device) - first[query]
    table = value.new_full((queries, max(width, int(first.diff().amax()))), torch.inf)
    table[query, place] = value
    return table


def _first_places(query: Tensor, queries: int) -> Tensor:
    """Return where each of 0, 1, ..., queries would be inserted in ascending numbers."""
    return torch.searchsorted(query, torch.arange(queries + 1, device=query.device))


def _squared_distances(queries: Tensor, rows: Tensor, query: Tensor, row: Tensor) -> Tensor:
    """Return Σ(q − r)² of pairs of indices."""
    row, order = row.sort()  # memory is read faster in order
    chunk = rows_at_once(queries.device, 16 * queries.shape[1] * queries.itemsize)
    pairs = zip(query[order].split(chunk), row.split(chunk), strict=True)
    # index_select copies row by row; indexing copies number by number, which is much slower on CPUs.
    sums = [rows.index_select(0, r).sub_(queries.index_select(0, q)).square_().sum(dim=1) for q, r in pairs]
    return torch.empty_like(row, dtype=queries.dtype).index_copy_(0, order, torch.cat(sums))
