"""From arrays as people keep them to inputs: layout, pixel range and finite values, row by row."""

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from besnn.data.dataset import Inputs
from besnn.errors import InputError

Rows: TypeAlias = NDArray[np.generic]


def inputs_from_rows(rows: Rows) -> tuple[Inputs, list[str]]:
    """Return inputs, and what is wrong with each row (empty where all is well; a bad row's input is zeros).

    Args:
        rows: a table `[n, d]` of numbers, or images `[n, h, w]`, `[n, h, w, c]` or `[n, c, h, w]`: whole numbers
            from 0 to 255, or floats in [0, 1].

    Example:
        >>> images, errors = inputs_from_rows(np.array([[[0.0, 1.0]], [[0.5, 7.0]]]))
        >>> images.tolist()
        [[[[0, 255]]], [[[0, 0]]]]
        >>> errors
        ['', 'pixels outside 0 to 1']
    """
    if rows.dtype.kind not in "buif":
        raise InputError(f"an array of {rows.dtype} is not numeric: give integers or floats")
    if rows.ndim == 2:
        return _table(rows)
    return _images(_channels_first(rows))


def _table(rows: Rows) -> tuple[NDArray[np.float32], list[str]]:
    """Rows of numbers `[n, d]` as float32; one that is not finite there is an error."""
    with np.errstate(over="ignore"):
        inputs = rows.astype(np.float32)
    errors = [""] * len(inputs)
    finite = np.isfinite(inputs)
    for row in np.flatnonzero(~finite.all(axis=1)):
        column = int(np.argmin(finite[row]))
        errors[row] = f"column {column} is not a finite number ({rows[row, column]})"
        inputs[row] = 0
    return inputs, errors


def _images(rows: Rows) -> tuple[NDArray[np.uint8], list[str]]:
    """Images `[n, c, h, w]` as uint8; one with pixels out of range (or NaN) is an error."""
    if rows.dtype == np.uint8:
        return rows.astype(np.uint8, order="C"), [""] * len(rows)
    values = rows.astype(np.float64)
    top = 255 if rows.dtype.kind in "ui" else 1
    good: NDArray[np.bool_] = np.all((values >= 0) & (values <= top), axis=(1, 2, 3))
    values[~good] = 0
    return np.rint(values * (255 / top)).astype(np.uint8, order="C"), [
        "" if ok else f"pixels outside 0 to {top}" for ok in good
    ]


def _channels_first(rows: Rows) -> Rows:
    """Bring images to `[n, c, h, w]`."""
    if rows.ndim == 3:
        return rows[:, None]
    if rows.ndim == 4:
        first, last = rows.shape[1] in (1, 3), rows.shape[3] in (1, 3)
        if first and not last:
            return rows
        if last and not first:
            return rows.transpose(0, 3, 1, 2)
    raise InputError(
        f"an array of shape {list(rows.shape)} is neither a table [n, d] nor images [n, h, w], [n, h, w, c] or "
        "[n, c, h, w] with 1 or 3 channels: reshape it"
    )
