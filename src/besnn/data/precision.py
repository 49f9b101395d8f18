"""Whether float32, which networks work in, holds a table's columns finely enough to learn from them."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


class Rounding:
    """What float32 rounds off a table's columns, taken in some rows at a time.

    Example:
        >>> rounding = Rounding()
        >>> rounding.add(np.array([[0.5, 1.7e9], [0.1, 1.7e9 + 30]]))
        >>> rounding.loss(["size", "time"])
        "column 'time' reaches 1.7e+09 and varies by 15, which float32 does not hold: standardise it first"
    """

    def __init__(self) -> None:
        self._rows = 0

    def add(self, rows: NDArray[np.generic]) -> None:
        """Take in rows `[n, d]` of finite numbers, as they were before float32."""
        if not len(rows) or np.can_cast(rows.dtype, np.float32):
            return
        exact = rows.astype(np.float64, copy=False)
        if not self._rows:
            self._first = exact[0].copy()
            self._error, self._largest, self._sum, self._squares = np.zeros((4, exact.shape[1]))
        # Sums are of distances from a row of the table: so no digits are lost where values are large and vary little.
        with np.errstate(over="ignore", invalid="ignore"):
            apart = exact - self._first
            self._sum += apart.sum(axis=0)
            self._squares += np.einsum("nd,nd->d", apart, apart)
            error = np.abs(exact - exact.astype(np.float32))
        self._error = np.maximum(self._error, error.max(axis=0))
        self._largest = np.maximum(self._largest, np.abs(exact).max(axis=0))
        self._rows += len(rows)

    def loss(self, names: Sequence[str] = ()) -> str:
        """Say which column is too large for float32, or varies more finely than it can tell; empty where none does."""
        if not self._rows:
            return ""
        with np.errstate(over="ignore", invalid="ignore"):
            spread = np.sqrt(np.maximum(self._squares / self._rows - (self._sum / self._rows) ** 2, 0))
        # What varies even less than 1e-12 of its size is constant, but for the rounding of float64.
        too_fine = (self._error > 0.01 * spread) & (spread > 1e-12 * self._largest)
        lost = too_fine | np.isinf(self._error)
        if not lost.any():
            return ""
        column = int(np.argmax(lost))
        name = repr(names[column]) if names else column
        extent = f"reaches {self._largest[column]:g} and varies by {spread[column]:g}"
        return f"column {name} {extent}, which float32 does not hold: standardise it first"
