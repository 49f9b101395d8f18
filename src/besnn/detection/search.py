"""Exact k-nearest-neighbour distances by blocked matrix products: fast, and without the n² matrix of distances."""

import torch
from torch import Tensor

ROW_BLOCK = 16384
QUERY_BLOCK = 512
RERANK_ELEMENTS = 2**24  # of the [queries, window, d] differences: 64 MiB in float32
SPARE = 12  # candidates on either side of the k-th that are measured exactly
SAFETY = 4.0  # times the largest rounding error measured on the window: no row is taken to have a larger one


def kth_nearest_squared_distance(queries: Tensor, rows: Tensor, k: int) -> Tensor:
    """‖q − r‖² to the k-th nearest row r of every query q.

    Candidates come from ‖r‖² − 2 q·r, one matrix product a block; those ranked near the k-th are measured again as
    Σ(q − r)². The product may be rounded coarsely (TF32, bfloat16), and it cancels near zero: where the error seen could
    have put a wrong row into the window, that query is searched again in float64. So the result is exact to float32's
    rounding, whatever the precision of products.

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
    estimates, candidates = _nearest(queries, rows, min(k + SPARE, len(rows)))
    sure = max(0, k - 1 - SPARE)  # so many are nearer than the k-th, unless found doubtful below
    window = candidates[:, sure:]
    below = estimates[:, sure - 1] if sure else torch.full_like(estimates[:, 0], -torch.inf)
    above = estimates[:, -1] if candidates.shape[1] < len(rows) else torch.full_like(estimates[:, 0], torch.inf)
    result = torch.empty_like(estimates[:, 0])
    block = max(1, RERANK_ELEMENTS // (window.shape[1] * rows.shape[1]))
    for start in range(0, len(queries), block):
        part = torch.arange(start, min(start + block, len(queries)), device=queries.device)
        exact = (queries[part, None] - rows[window[part]]).square().sum(dim=-1)
        kth = exact.kthvalue(k - sure, dim=1).values
        error = SAFETY * (estimates[part, sure:] - exact).abs().amax()
        doubtful = (below[part] + error > kth) | (above[part] - error < kth)
        if bool(doubtful.any()):
            kth[doubtful] = _nearest(queries[part[doubtful]].double(), rows, k)[0][:, -1].to(kth.dtype)
        result[part] = kth
    return result


def _nearest(queries: Tensor, rows: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` smallest ‖q − r‖² of every query in ascending order, and their rows, in the queries' precision."""
    best = queries.new_full((len(queries), count), torch.inf)
    index = torch.zeros(best.shape, dtype=torch.long, device=queries.device)
    for first in range(0, len(rows), ROW_BLOCK):
        block = rows[first : first + ROW_BLOCK].to(queries.dtype)
        norms = block.square().sum(dim=1)
        for start in range(0, len(queries), QUERY_BLOCK):
            here = slice(start, start + QUERY_BLOCK)
            estimates = torch.addmm(norms, queries[here], block.T, alpha=-2)
            values, columns = estimates.topk(min(count, len(block)), dim=1, largest=False)
            merged = torch.cat([best[here], values], dim=1).topk(count, dim=1, largest=False)
            best[here] = merged.values
            index[here] = torch.cat([index[here], columns + first], dim=1).gather(1, merged.indices)
    return (best + queries.square().sum(dim=1, keepdim=True)).clamp_min(0), index
