"""Cells of a table: which are gaps, and their values as numbers, days or words."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

# What a cell must look like to be read as a number. NaN and infinity are refused, so their names are not in it.
_NUMBER = r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$"
_DATE = r"^\d{4}-\d{2}-\d{2}([ T]\d{2}:\d{2}(:\d{2}(\.\d{1,6})?)?)?Z?$"
# A list, because the first array that pyarrow makes imports pandas, which takes a second.
_GAPS = ["", "na", "n/a", "nan", "null", "none", "?"]
_MICROSECONDS = 86_400e6  # per day


def is_text(cells: pa.Array) -> bool:
    """Whether cells are text of any kind."""
    kind = cells.type
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def plain_cells(cells: pa.Array) -> pa.Array:
    """Return cells decoded from a dictionary, and text as text that all of pyarrow's functions take, without outer spaces."""
    if pa.types.is_dictionary(cells.type):
        cells = cells.dictionary_decode()
    if pa.types.is_binary(cells.type) or is_text(cells):
        cells = pc.utf8_trim_whitespace(cells.cast(pa.string()))
    return cells


def to_numbers(cells: pa.Array) -> NDArray[np.float64]:
    """Return cells `[n]` as numbers, `true` and `false` as 1 and 0, NaN for a cell that is neither."""
    if pa.types.is_dictionary(cells.type):
        cells = cells.dictionary_decode()
    try:
        return _cast(cells)
    except pa.ArrowNotImplementedError:  # dates, lists and the like
        return np.full(len(cells), np.nan)
    except pa.ArrowInvalid:  # the fast way fails at the first bad cell: blank the bad ones and try again
        text = pc.ascii_trim_whitespace(cells.cast(pa.string()))
        numbers = _cast(pc.if_else(pc.match_substring_regex(text, _NUMBER), text, None))
        word = pc.utf8_lower(text)
        numbers[np.asarray(pc.fill_null(pc.equal(word, "true"), False))] = 1
        numbers[np.asarray(pc.fill_null(pc.equal(word, "false"), False))] = 0
        return numbers


def _cast(cells: pa.Array) -> NDArray[np.float64]:
    return np.array(cells.cast(pa.float64(), safe=False))


def to_days(cells: pa.Array) -> NDArray[np.float64]:
    """Return dates and time stamps, or text as ISO 8601 writes them, in days since 1970; NaN for other cells.

    >>> to_days(pa.array(["1970-01-02", "1970-01-01T12:00", "soon"])).tolist()
    [1.0, 0.5, nan]
    """
    cells = plain_cells(cells)
    if is_text(cells):
        cells = pc.if_else(pc.match_substring_regex(cells, _DATE), pc.replace_substring_regex(cells, "Z$", ""), None)
    elif not pa.types.is_temporal(cells.type):  # integers would be taken for microseconds
        return np.full(len(cells), np.nan)
    try:
        stamps = cells.cast(pa.timestamp("us"), safe=False)
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid):  # not a kind of date, or no such day
        return np.full(len(cells), np.nan)
    return np.array(stamps.cast(pa.int64()).cast(pa.float64(), safe=False)) / _MICROSECONDS


def gaps(cells: pa.Array) -> NDArray[np.bool_]:
    """Return which cells are missing: null, NaN, empty, or one of the usual words for it.

    >>> gaps(pa.array(["1", " ", "n/a", None])).tolist()
    [False, True, True, True]
    """
    cells = plain_cells(cells)
    missing = np.array(cells.is_null(nan_is_null=True))
    if is_text(cells):
        missing |= np.array(pc.is_in(pc.utf8_lower(cells), value_set=pa.array(_GAPS)))
    return missing


def to_words(cells: pa.Array) -> pa.Array:
    """Return cells as text without outer spaces."""
    return plain_cells(cells).cast(pa.string())
