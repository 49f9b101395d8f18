"""Estimates of many squared distances by one product of 8-bit integers, on CPUs that have an instruction for it."""

import math
from functools import cache

import torch
from torch import Tensor

from besnn.detection.estimates import SLACK, Estimates
from besnn.detection.workspace import rows_at_once

LARGEST = 127  # a code is a whole number from -127 to 127
SHIFT = 128  # the instruction multiplies signed codes by unsigned ones: queries are shifted
ROUGHEST = 1 / 32  # of the rows' norm: where rounding takes more, too many rows would be in doubt
MOST_DIMENSIONS = 2**16  # so many products still add up in 32 bits


@cache
def codes_work() -> bool:
    """Whether the processor has the instruction and torch the operators, which it does not document: a product tells."""
    if not torch.cpu._is_vnni_supported():
        return False
    whole = [[127.0, -127.0], [-127.0, 127.0]]  # and centred: nothing is rounded away
    rows = torch.tensor(whole, dtype=torch.float32, device="cpu")  # whatever a user's defaults are
    try:
        estimates = CodeEstimator(rows, columns=2)(rows)
    except (AttributeError, RuntimeError, TypeError):  # other operators in another version
        return False
    half = (rows[:, None] - rows).square().sum(-1) / 2 + estimates.offset[:, None]
    return torch.allclose(estimates.values.float(), half, rtol=2**-7)


class CodeEstimator:
    """‖q̂ − r̂‖²/2 of vectors rounded to whole multiples of one unit, from exact products of whole numbers.

    The bound is the triangle inequality: ‖q̂ − r̂‖ differs from ‖q − r‖ by at most ‖q̂ − q‖ + ‖r̂ − r‖, which are measured.
    So the error shrinks with the distance, and numbers as rough as these still tell neighbours from the rest.

    Args:
        rows: `[n, d]`, float32, on a CPU.
        columns: at least n; those after the n-th estimate an infinite distance.

    Attributes:
        suits: whether codes tell such rows apart well enough to be worth their while; if not, don't call.
    """

    def __init__(self, rows: Tensor, columns: int) -> None:
        self.centre = rows.mean(dim=0)
        largest = torch.maximum(rows.amax(dim=0) - self.centre, self.centre - rows.amin(dim=0)).amax()
        self.scale = torch.where(largest > 0, LARGEST / largest, 1.0)
        codes, loss, self.half = self._codes(rows)
        self.loss = loss.amax()
        norm = (2 * self.half.mean()).sqrt()
        self.suits = rows.shape[1] <= MOST_DIMENSIONS and bool(self.loss <= ROUGHEST * norm)
        weights = codes.new_zeros(columns, rows.shape[1])
        weights[: len(rows)] = -codes
        self.rows = torch.ops.onednn.qlinear_prepack(weights, None)
        # What the shift of the queries adds is taken back here.
        self.constant = rows.new_full((columns,), torch.inf)
        self.constant[: len(rows)] = self.half + SHIFT * codes.sum(dim=1, dtype=torch.int32)
        self.ones, self.zeros = rows.new_ones(columns), rows.new_zeros(columns, dtype=torch.int64)

    @property
    def bytes_a_query(self) -> int:
        """Of the estimates."""
        return len(self.constant) * torch.bfloat16.itemsize

    def __call__(self, queries: Tensor) -> Estimates:
        """Estimates for queries `[b, d]`, float32."""
        codes, loss, half = self._codes(queries)
        # A row's constant fits into the product, a query's ‖q̂‖²/2 does not: all get the largest, and `offset` says how much
        # that is too much. A query far outside would cost the others digits that way: it goes without a bound.
        reach = torch.minimum(half.amax(), 4 * self.half.amax())
        shifted = (codes.to(torch.int16) + SHIFT).to(torch.uint8)
        values = torch.ops.onednn.qlinear_pointwise(
            shifted, 1.0, 0, self.rows, self.ones, self.zeros, self.constant + reach, 1.0, 0, torch.bfloat16, "none", [], ""
        )
        # The sum of products is exact. As float32, which it becomes to be added to the constants, it is rounded a few times.
        rounded = 8 * torch.finfo(torch.float32).eps * queries.shape[1] * LARGEST * (LARGEST + SHIFT)
        error = torch.where(half <= reach, rounded, torch.inf)
        return Estimates(values, error, torch.finfo(values.dtype).eps / 2, reach - half, loss + self.loss, self.scale)

    def _codes(self, vectors: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Codes `[n, d]`, how far they are from the vectors at most, and half their squared norm, both in units, `[n]`."""
        d, exact = vectors.shape[1], torch.finfo(torch.float32)
        underflow = math.sqrt(d) * exact.tiny * self.scale.clamp(min=1)  # differences may be flushed before they are scaled
        parts = []
        for raw in vectors.split(rows_at_once(vectors.device, 4 * d * vectors.itemsize)):
            centred = (raw - self.centre).mul_(self.scale)
            norm = torch.linalg.vector_norm(centred, dim=1)
            rounded = centred.round().clamp_(-LARGEST, LARGEST)
            loss = torch.linalg.vector_norm(centred.sub_(rounded), dim=1)
            half = rounded.square().sum(dim=1, dtype=torch.float64).float() / 2
            parts.append((rounded.to(torch.int8), SLACK * (loss + exact.eps * norm + underflow), half))
        codes, loss, half = (torch.cat(part) for part in zip(*parts, strict=True))
        return codes, loss, half
