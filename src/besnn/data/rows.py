"""Rows on their way from a file or an array to inputs: checked numbers, labels, and what is wrong with each row."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import compress
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from besnn.data.dataset import Dataset, Inputs
from besnn.errors import DataError, InputError

Label: TypeAlias = str | int | float | None


@dataclass(frozen=True, eq=False)
class Rows:
    """Some rows of a source, in order.

    Attributes:
        inputs: images `uint8 [n, c, h, w]` or table rows `float32 [n, d]`; zeros for a row with an error.
        errors: what is wrong with each row; empty if nothing is.
        labels: the class of each row as the source writes it; empty if the source has no labels.
        exact: a table's numbers `[n, d]` before they became float32; None for images.

    >>> rows_from_array(np.array([[1.0], [np.nan]])).errors
    ['', 'column 0 is not a finite number (nan)']
    """

    inputs: Inputs
    errors: list[str]
    labels: Sequence[Label] = ()
    exact: NDArray[np.generic] | None = None


@dataclass(frozen=True, eq=False)
class Batch:
    """Some inputs to score, in order.

    Attributes:
        ids: the name of each input: a file's path within its folder, or a row's number (the first is 0).
        inputs: `uint8 [n, c, h, w]` or `float32 [n, d]`; zeros for an input with an error.
        errors: what is wrong with each input; empty if nothing is.

    >>> Batch(["a.png", "b.txt"], np.zeros((2, 1, 8, 8), np.uint8), ["", "not an image"]).good
    array([ True, False])
    """

    ids: list[str]
    inputs: Inputs
    errors: list[str]

    @property
    def good(self) -> NDArray[np.bool_]:
        """Which inputs can be scored, `[n]`."""
        return np.array([not error for error in self.errors], dtype=np.bool_)


def numbered_batches(blocks: Iterable[Rows], batch_size: int, start: int = 0) -> Iterator[Batch]:
    """Regroup rows into batches of one size (the last may be smaller); inputs are named by their number, from `start` on."""

    def batch(inputs: Inputs, errors: list[str], first: int) -> Batch:
        return Batch([str(number) for number in range(first, first + len(errors))], inputs, errors)

    rest: list[Inputs] = []
    errors: list[str] = []
    for rows in blocks:
        rest.append(rows.inputs)
        errors += rows.errors
        del rows  # or they would stay in memory while the next rows are read
        if (full := len(errors) - len(errors) % batch_size) == 0:
            continue
        inputs, rest = np.concatenate(rest), []
        for place in range(0, full, batch_size):
            slot = slice(place, place + batch_size)
            yield batch(inputs[slot], errors[slot], start + place)
        start += full
        rest, errors = [inputs[full:]], errors[full:]
        del inputs
    if errors:
        yield batch(np.concatenate(rest), errors, start)


def collect(blocks: Iterable[Rows], path: Path, feature_names: tuple[str, ...] = (), skip_bad: bool = False) -> Dataset:
    """Return all rows of a file as one data set; bad rows raise a DataError, or are left out and counted in its note."""
    inputs: list[Inputs] = []
    labels: list[Label] = []
    bad: list[str] = []
    rounding = Rounding()
    start = 0
    for rows in blocks:
        good = np.array([not error for error in rows.errors], dtype=np.bool_)
        bad += [f"row {number} (the first is 0): {error}" for number, error in enumerate(rows.errors, start) if error]
        start += len(rows.inputs)
        inputs.append(rows.inputs[good])
        labels.extend(compress(rows.labels, good))
        if rows.exact is not None:
            rounding.add(rows.exact[good])
    if bad and not skip_bad:
        more = f", and {len(bad) - 1:,} more bad rows" if len(bad) > 1 else ""
        raise DataError(f"{path}, {bad[0]}{more}: fix or remove what is bad, or leave it out with --skip-bad")
    if start == len(bad):
        raise DataError(f"{path} has no {'good ' if bad else ''}rows: give at least one")
    encoded, class_names = encode_labels(labels, str(path)) if labels else (None, ())
    with path.open("rb") as file:
        hashes = {str(path): hashlib.file_digest(file, "sha256").hexdigest()}
    lost = rounding.loss(feature_names)
    note = f"{len(bad):,} of {start:,} rows cannot be read and are left out; the first: {bad[0]}" if bad else ""
    return Dataset(np.concatenate(inputs), encoded, class_names, str(path), hashes, feature_names, note, lost)


def encode_labels(values: Sequence[Label], source: str) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Return labels `int64 [n]` and the class names that they index, sorted by value if all are integers, else as text."""
    names = [_class_name(value, row, source) for row, value in enumerate(values)]
    unique = set(names)
    by_value = all(name.removeprefix("-").isdecimal() for name in unique)
    class_names = tuple(sorted(unique, key=lambda name: (int(name) if by_value else 0, name)))
    indices = {name: index for index, name in enumerate(class_names)}
    return np.array([indices[name] for name in names], dtype=np.int64), class_names


def _class_name(value: Label, row: int, source: str) -> str:
    if isinstance(value, float):
        if not value.is_integer():
            raise DataError(f"{source}, row {row}: label {value} is not a class: use strings or integers")
        value = int(value)
    name = "" if value is None else str(value).strip()
    if not name:
        raise DataError(f"{source}, row {row}: the label is missing: fill it in or drop the row")
    return name


def rows_from_array(array: NDArray[np.generic], labels: Sequence[Label] = ()) -> Rows:
    """Bring an array to the layout, range and dtype of inputs, and check each row.

    The array is a table `[n, d]` of numbers, or images `[n, h, w]`, `[n, h, w, c]` or `[n, c, h, w]`: whole numbers from 0
    to 255, or floats in [0, 1].

    >>> rows = rows_from_array(np.array([[[0.0, 1.0]], [[0.5, 7.0]]]))
    >>> rows.inputs.tolist()
    [[[[0, 255]]], [[[0, 0]]]]
    >>> rows.errors
    ['', 'pixels outside 0 to 1']
    """
    if array.dtype.kind not in "buif":
        raise InputError(f"an array of {array.dtype} is not numeric: give integers or floats")
    return rows_from_numbers(array, labels) if array.ndim == 2 else _image_rows(_channels_first(array), labels)


def rows_from_numbers(
    numbers: NDArray[np.generic], labels: Sequence[Label], explain: Callable[[int, int], str] | None = None
) -> Rows:
    """Convert a table `[n, d]` to float32; a number that is not finite there is an error, in the words of `explain`."""
    with np.errstate(over="ignore"):
        inputs = numbers.astype(np.float32, order="C")
    errors = [""] * len(inputs)
    finite = np.isfinite(inputs)
    for row in np.flatnonzero(~finite.all(axis=1)).tolist():
        column = int(np.argmin(finite[row]))
        unnamed = f"column {column} is not a finite number ({numbers[row, column]})"
        errors[row] = explain(row, column) if explain else unnamed
        inputs[row] = 0
    return Rows(inputs, errors, labels, exact=numbers)


def _image_rows(images: NDArray[np.generic], labels: Sequence[Label]) -> Rows:
    """Convert images `[n, c, h, w]` to uint8; pixels out of range (or NaN) are an error."""
    if images.dtype == np.uint8:
        return Rows(images.astype(np.uint8, order="C"), [""] * len(images), labels)
    values = images.astype(np.float64)
    top = 255 if images.dtype.kind in "ui" else 1
    good: NDArray[np.bool_] = np.all((values >= 0) & (values <= top), axis=(1, 2, 3))
    values[~good] = 0
    pixels = np.rint(values * (255 / top)).astype(np.uint8, order="C")
    return Rows(pixels, ["" if ok else f"pixels outside 0 to {top}" for ok in good], labels)


def _channels_first(images: NDArray[np.generic]) -> NDArray[np.generic]:
    if images.ndim == 3:
        return images[:, None]
    if images.ndim == 4:
        first, last = images.shape[1] in (1, 3), images.shape[3] in (1, 3)
        if first and not last:
            return images
        if last and not first:
            return images.transpose(0, 3, 1, 2)
    layouts = "a table [n, d] nor images [n, h, w], [n, h, w, c] or [n, c, h, w] with 1 or 3 channels"
    raise InputError(f"an array of shape {list(images.shape)} is neither {layouts}: reshape it")


class Rounding:
    """Whether float32, in which networks compute, holds a table's columns finely enough to learn from them."""

    def __init__(self) -> None:
        self._extents: list[NDArray[np.float64]] = []  # of each block: the maxima, the negated minima, the rounding errors

    def add(self, table: NDArray[np.generic]) -> None:
        """Add rows `[n, d]` of finite numbers, as they were before float32."""
        if len(table) and not np.can_cast(table.dtype, np.float32):
            exact = table.astype(np.float64, copy=False)
            with np.errstate(over="ignore"):
                error = np.abs(exact - exact.astype(np.float32)).max(axis=0)
            self._extents.append(np.stack([exact.max(axis=0), -exact.min(axis=0), error]))

    def loss(self, names: Sequence[str] = ()) -> str:
        """Name the first column that is too large for float32 or varies too finely for it; empty if there is none."""
        if not self._extents:
            return ""
        high, minus_low, error = np.max(self._extents, axis=0)
        largest, spread = np.maximum(np.abs(high), np.abs(minus_low)), high + minus_low
        # A column that varies by less than 1e-12 of its size is constant, up to the rounding of float64.
        lost = np.isinf(error) | ((error > 0.003 * spread) & (spread > 1e-12 * largest))
        if not lost.any():
            return ""
        column = int(np.argmax(lost))
        name = repr(names[column]) if names else column
        extent = f"reaches {largest[column]:g} and varies by {spread[column]:g}"
        return f"column {name} {extent}, which float32 does not hold: standardise it first"
