"""Estimates of many squared distances by one coarse matrix product, with a bound on their error."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from besnn.detection.workspace import rows_at_once

PARTS = 3  # numbers of the coarse type that together hold a squared norm to float32's precision
ALIGNMENT = 8  # fast multiplication wants lengths that are multiples of it
SLACK = 1.01  # the bounds' own arithmetic is rounded, too
# What a product of float32 may do to its factors, by torch.set_float32_matmul_precision: nothing, TensorFloat-32, bfloat16.
FACTOR_ROUNDING = {"highest": 0.0, "high": 2.0**-11, "medium": 2.0**-8}


class Estimates(NamedTuple):
    """`values`, `[queries, columns]`, near ‖q − r‖²/2 in units of their own, and how near.

    A value was within `error`, `[queries]`, of `offset` + ‖q̂ − r̂‖²/2 before it was rounded by a factor of at most
    1 ± `rounding`, and ‖q̂ − r̂‖ is within `blur` of ‖q − r‖, all multiplied by `scale`.
    """

    values: Tensor
    error: Tensor
    rounding: float
    offset: Tensor
    blur: Tensor
    scale: Tensor

    def margin(self, kth: Tensor) -> Tensor:
        """How far from the k-th smallest value, `[queries]`, a row's can be while the row's place is in doubt: both may err."""
        error = self.error + 1.1 * self.rounding * (kth.abs() + 2 * self.error)
        distance = (2 * (kth - self.offset + error).clamp(min=0)).sqrt()
        # Rows in the wrong order have ‖q̂ − r̂‖ at most 2 blur apart: this is what it makes of half the squares.
        spread = 2 * self.blur * (distance + self.blur)
        return 2 * error + (1 + 2.2 * self.rounding) * spread

    def largest(self, squared: Tensor, d: int) -> Tensor:
        """The largest value of a row no further away than one whose Σ(q − r)² of d numbers was computed as `squared`."""
        exact = torch.finfo(squared.dtype)
        distance = self.scale * (squared * (1 + (d + 8) * exact.eps) + d * exact.tiny).sqrt() + self.blur
        value = self.offset + distance.square() / 2 + SLACK * self.error
        return value + SLACK * self.rounding * value.abs()


class _Sizes(NamedTuple):
    """Of vectors: norm and half its square, and how far the coarse vector and the coarse half are off at most."""

    norm: Tensor
    half: Tensor
    loss: Tensor
    half_loss: Tensor


class DistanceEstimator:
    """‖q − r‖²/2 = ‖q‖²/2 + ‖r‖²/2 − q·r of many pairs, as one product of longer vectors in a type that multiplies fast.

    Vectors are centred, since errors grow with norms, and scaled so that float16 holds them. The error bound is rigorous:
    Cauchy–Schwarz on the measured rounding of the vectors, and each addition of the product rounded the wrong way.
    Where a query overflows the type, the bound is infinite or NaN.

    Args:
        rows: `[n, d]`, float32.
        dtype: of the product.
        columns: at least n; those after the n-th estimate an infinite distance.
    """

    def __init__(self, rows: Tensor, dtype: torch.dtype, columns: int) -> None:
        self.dtype = dtype
        self.precise = torch.float64 if dtype == torch.float64 else torch.float32
        self.centre = rows.mean(dim=0, dtype=self.precise)
        self.scale = _scale(torch.maximum(rows.amax(dim=0) - self.centre, self.centre - rows.amin(dim=0)).amax())
        self.rows, sizes = self._lengthened(rows, columns)  # r, ‖r‖²/2, 1
        self.rows[len(rows) :, rows.shape[1]] = torch.inf
        self.largest = _Sizes(*(size.amax() for size in sizes))

    @property
    def bytes_a_query(self) -> int:
        """Of the estimates."""
        return len(self.rows) * (torch.float32 if self.dtype == torch.float16 else self.dtype).itemsize

    def __call__(self, queries: Tensor) -> Estimates:
        """Estimates for queries `[b, d]`, float32."""
        d = queries.shape[1]
        long, sizes = self._lengthened(queries, len(queries))
        long[:, :d].neg_()
        long[:, d : d + 2 * PARTS] = long[:, d : d + 2 * PARTS].roll(PARTS, dims=1)  # -q, 1, ‖q‖²/2
        values = _product(long, self.rows)
        error = self._error(sizes, long.shape[1])
        exactly = torch.zeros_like(error)
        return Estimates(values, error, torch.finfo(values.dtype).eps / 2, exactly, exactly, self.scale)

    def _lengthened(self, vectors: Tensor, count: int) -> tuple[Tensor, _Sizes]:
        """Each vector, half its squared norm in parts and as many ones, `[count, about d]`, zero where there is none."""
        d = vectors.shape[1]
        long = vectors.new_zeros(count, -(-(d + 2 * PARTS) // ALIGNMENT) * ALIGNMENT, dtype=self.dtype)
        rounding = torch.finfo(self.precise).eps
        half_rounding = rounding * (d + 8)  # centring rounds each number, the norm adds up rounded squares
        underflow = self._underflow(d)
        sizes = []
        chunk = rows_at_once(vectors.device, 4 * d * self.precise.itemsize)
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
            sizes.append(_Sizes(norm + underflow, half, loss + rounding * norm + underflow, half_loss))
        long[: len(vectors), d + PARTS : d + 2 * PARTS] = 1
        return long, _Sizes(*(torch.cat(size) for size in zip(*sizes, strict=True)))

    def _underflow(self, d: int) -> Tensor:
        """The length by which a vector of d numbers may be wrong because numbers too small for the type vanish.

        What is below the smallest normal number may be flushed to 0, or is as good as gone. Half a squared norm adds up d
        squares, and an estimate about d products, each of which may vanish, and each sum of them: both together take less
        than 3 (d + 8) of that number from the vector's squared length. A difference may vanish before it is scaled.
        """
        tiny = torch.finfo(self.precise).tiny
        return math.sqrt(d) * tiny * self.scale.clamp(min=1) + math.sqrt(3 * (d + 8) * tiny)

    def _error(self, queries: _Sizes, additions: int) -> Tensor:
        factor = FACTOR_ROUNDING[torch.get_float32_matmul_precision()] if self.dtype == torch.float32 else 0.0
        queries, rows = _rounded(queries, factor), _rounded(self.largest, factor)
        factors = queries.loss * (rows.norm + rows.loss) + queries.norm * rows.loss
        sums = (queries.norm + queries.loss) * (rows.norm + rows.loss) + queries.half + rows.half
        # float16 and bfloat16 are multiplied exactly and added in float32, on CPUs and GPUs alike.
        addition = torch.finfo(self.precise).eps * additions
        return SLACK * (factors + addition * sums + queries.half_loss + rows.half_loss)


def _rounded(sizes: _Sizes, factor: float) -> _Sizes:
    """The sizes of vectors whose numbers are rounded once more."""
    return sizes._replace(loss=sizes.loss + factor * sizes.norm, half_loss=sizes.half_loss + factor * sizes.half)


def _product(queries: Tensor, rows: Tensor) -> Tensor:
    """`queries @ rows.T`; float16 gives float32, since GPUs may else add up in float16."""
    if queries.dtype == torch.float16:
        return torch.mm(queries, rows.T, out_dtype=torch.float32)
    return queries @ rows.T


def _scale(largest: Tensor) -> Tensor:
    """The power of two that brings a number to at most 1; 1 for 0."""
    exponent = torch.frexp(largest).exponent.clamp(-100, 100)
    return torch.ldexp(torch.ones_like(largest), -exponent)
