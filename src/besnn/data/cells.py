"""The cells of a table's columns: as numbers, as classes."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from besnn.data.rows import Label

# What a cell must look like to be read as a number; the words for NaN and infinity are no numbers here.
_NUMBER = r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$"


def to_numbers(cells: pa.Array) -> NDArray[np.float64]:
    """Return cells `[n]` as numbers, NaN where a cell is not one.

    Example:
        >>> to_numbers(pa.array(["1", " 2.5 ", "three", ""])).tolist()
        [1.0, 2.5, nan, nan]
    """
    if pa.types.is_dictionary(cells.type):
        cells = cells.dictionary_decode()
    try:
        return _to_numpy(cells)
    except pa.ArrowNotImplementedError:  # dates, lists and the like
        return np.full(len(cells), np.nan)
    except pa.ArrowInvalid:  # the quick way fails at the first bad cell: blank the bad ones and try again
        text = pc.ascii_trim_whitespace(cells)
        return _to_numpy(pc.if_else(pc.match_substring_regex(text, _NUMBER), text, None))


def reason_not_finite(column: str, cell: object) -> str:
    """Say why a cell of a column is not a finite number.

    Example:
        >>> reason_not_finite("age", "old")
        "column 'age' is not a finite number ('old')"
    """
    text = "" if cell is None else str(cell)
    return f"column {column!r} is not a finite number ({text[:40]!r})" if text.strip() else f"column {column!r} is empty"


def to_labels(cells: pa.Array) -> list[Label]:
    """Return the cells of a class column."""
    labels: list[Label] = (cells.cast(pa.string()) if pa.types.is_binary(cells.type) else cells).to_pylist()
    return labels


def _to_numpy(cells: pa.Array) -> NDArray[np.float64]:
    numbers: NDArray[np.float64] = cells.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    return numbers
