"""Divide rows into parts: at random, or so that every part has the classes in the same shares."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from besnn.errors import InputError


def split_indices(
    rows: int, sizes: Sequence[int | float], *, seed: int, labels: NDArray[np.int64] | None = None
) -> tuple[NDArray[np.int64], ...]:
    """Return the row numbers of each part, ascending: one part a size, then the rest.

    Args:
        rows: how many rows there are.
        sizes: a part's size: a share of all rows (a float between 0 and 1) or a number of rows (an int).
        seed: of the shuffle; the same seed gives the same parts.
        labels: `[rows]`; where given, every part holds each class in its overall share, as near as whole rows allow.

    Example:
        >>> first, rest = split_indices(10, [0.3], seed=0)
        >>> len(first), len(rest)
        (3, 7)
    """
    counts = [_count(size, rows) for size in sizes]
    if sum(counts) >= rows:
        raise InputError(f"parts of {counts} rows leave nothing of {rows} for the last part: ask for smaller ones")
    order = np.random.default_rng(seed).permutation(rows)
    if labels is not None:
        order = _spread_classes(order, labels)
    return tuple(np.sort(part) for part in np.split(order, np.cumsum(counts)))


def _count(size: int | float, rows: int) -> int:
    """How many rows a size asks for."""
    if isinstance(size, float) and not 0 < size < 1:
        raise InputError(f"a share of {size} is not between 0 and 1: give a number of rows as an int")
    count = round(size * rows) if isinstance(size, float) else size
    if count < 1:
        raise InputError(f"a part of size {size} out of {rows} rows would be empty: ask for a larger one")
    return count


def _spread_classes(order: NDArray[np.int64], labels: NDArray[np.int64]) -> NDArray[np.int64]:
    """Reorder shuffled rows so that each class is spread evenly over the whole: any run then has every class's share."""
    position = np.empty(len(order))
    for label in np.unique(labels):
        members = order[labels[order] == label]
        position[members] = (np.arange(len(members)) + 0.5) / len(members)
    return order[np.argsort(position[order], kind="stable")]
