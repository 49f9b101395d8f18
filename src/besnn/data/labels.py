"""From class labels as people write them to places in a sorted list of class names."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from besnn.errors import DataError


def encode_labels(values: Sequence[str | int | float | None], source: str) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Return labels `int64 [n]` and the class names they stand for.

    Class names are sorted: by value where all are integers, else as text.

    Args:
        values: strings or integers, one a row; a whole-numbered float counts as an integer.
        source: named in errors.

    Example:
        >>> encode_labels([10, 2, 10], "example")
        (array([1, 0, 1]), ('2', '10'))
    """
    names = [_class_name(value, row, source) for row, value in enumerate(values)]
    unique = set(names)
    by_value = all(name.removeprefix("-").isdecimal() for name in unique)
    class_names = tuple(sorted(unique, key=lambda name: (int(name) if by_value else 0, name)))
    places = {name: place for place, name in enumerate(class_names)}
    return np.array([places[name] for name in names], dtype=np.int64), class_names


def _class_name(value: str | int | float | None, row: int, source: str) -> str:
    """The class a cell names."""
    if isinstance(value, str):
        name = value.strip()
    elif isinstance(value, float):
        if not value.is_integer():
            raise DataError(f"{source}, row {row}: label {value} is not a class: use strings or integers")
        name = str(int(value))
    else:
        name = "" if value is None else str(value)
    if not name:
        raise DataError(f"{source}, row {row}: the label is missing: fill it in or drop the row")
    return name
