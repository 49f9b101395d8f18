"""Tables as they are: how columns of numbers, words, dates and gaps become the numbers that a network takes."""

import re
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, Self, overload

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from besnn.data.cells import gaps, to_days, to_numbers, to_words
from besnn.data.rows import Label, Rounding, Rows, rows_from_numbers
from besnn.errors import DataError, InputError

MOST_WORDS = 64
"""A column with more different words is an identifier or free text, not a category."""
MAJORITY = 0.5
"""A column holds numbers (or dates) if at least this share of its cells are; the others are mistakes."""
UNEXPECTED = "unexpected cells"
"""The name of the last encoded column."""
WEIGHT = 10.0
"""Its value for one unexpected cell. Training rows have none, so a row with one is far from all of them."""

PANDAS_INDEX = re.compile(r"|Unnamed: 0|__index_level_\d+__")
"""The names under which pandas writes and reads an index."""

Kind = Literal["number", "date", "word"]
_MEASURED: tuple[Kind, Kind] = ("number", "date")


class Columns(Sequence[str]):
    """Columns of a table by name, with what becomes of their cells."""

    names: tuple[str, ...]

    @property
    @abstractmethod
    def width(self) -> int:
        """How many numbers a row becomes."""

    @abstractmethod
    def rows(self, cells: pa.RecordBatch, labels: Sequence[Label] = ()) -> Rows:
        """Convert cells, whose columns may have any order."""

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[str]: ...
    def __getitem__(self, index: int | slice) -> str | Sequence[str]:
        return self.names[index]

    def __len__(self) -> int:
        return len(self.names)


@dataclass(frozen=True)
class Column:
    """How one column is encoded.

    Attributes:
        kind: numbers and dates (in days) become (x − centre) / scale, computed in float64; words become one column each.
        gaps: whether training rows have gaps here; then a column of its own says where they are.
    """

    name: str
    kind: Kind = "number"
    centre: float = 0.0
    scale: float = 1.0
    words: tuple[str, ...] = ()
    gaps: bool = False

    @property
    def feature_names(self) -> list[str]:
        """The names of the encoded columns."""
        own = [f"{self.name}={word}" for word in self.words] if self.kind == "word" else [self.name]
        return [*own, f"{self.name} is missing"] if self.gaps else own


class TableEncoding(Columns):
    """Turns cells of any kind into numbers.

    A gap becomes 0, which is the mean. What no training row has (a new word, a gap in a column without gaps) is counted in one
    more column, as evidence that the row is unknown. A cell that should be a number or a date but is not is its row's error.
    """

    def __init__(self, columns: Sequence[Column]) -> None:
        self.columns = tuple(columns)
        self.names = tuple(column.name for column in self.columns)
        self.feature_names = (*(name for column in self.columns for name in column.feature_names), UNEXPECTED)

    @property
    def width(self) -> int:
        """How many numbers a row becomes."""
        return len(self.feature_names)

    def rows(self, cells: pa.RecordBatch, labels: Sequence[Label] = ()) -> Rows:
        """Encode cells."""
        count = cells.num_rows
        unexpected, errors = np.zeros(count), [""] * count
        parts: list[NDArray[np.float64]] = []
        for column in self.columns:
            own = cells.column(column.name)
            missing = gaps(own)
            values, strange = _words(column, own) if column.kind == "word" else _values(column, own)
            values[missing] = 0
            if column.kind == "word":
                unexpected += strange & ~missing
            else:
                for row in np.flatnonzero(strange & ~missing).tolist():
                    what = "finite number" if column.kind == "number" else "date"
                    errors[row] = errors[row] or f"column {column.name!r} is not a {what} ({str(own[row].as_py())[:40]!r})"
            parts += [values, missing[:, None].astype(np.float64)] if column.gaps else [values]
            unexpected += 0 if column.gaps else missing
        inputs = np.concatenate([*parts, WEIGHT * unexpected[:, None]], axis=1).astype(np.float32)
        inputs[[bool(error) for error in errors]] = 0
        return Rows(inputs, errors, labels)

    def settings(self) -> list[dict[str, Any]]:
        """Return what `from_settings` needs, as JSON-able values."""
        return [asdict(column) for column in self.columns]

    @classmethod
    def from_settings(cls, settings: Sequence[dict[str, Any]]) -> Self:
        """Restore the encoding that `settings` describes."""
        return cls([Column(**{**each, "words": tuple(each["words"])}) for each in settings])


def _values(column: Column, cells: pa.Array) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return numbers or days, encoded `[n, 1]`, and which cells are neither."""
    values = to_numbers(cells) if column.kind == "number" else to_days(cells)
    with np.errstate(over="ignore", invalid="ignore"):
        encoded = (values - column.centre) / column.scale
        strange = ~np.isfinite(encoded.astype(np.float32))
    return np.where(strange, 0, encoded)[:, None], strange


def _words(column: Column, cells: pa.Array) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return one column per word `[n, words]`, and which cells are another word."""
    places = pc.index_in(to_words(cells), value_set=pa.array(column.words, pa.string()))
    index = np.array(pc.fill_null(places, len(column.words)))
    return np.eye(len(column.words) + 1)[index][:, :-1], index == len(column.words)


class _Summary:
    """What a column of the training table holds."""

    def __init__(self) -> None:
        self.filled, self.empty = 0, 0
        self.is_category = False
        self.values: dict[Kind, list[NDArray[np.float64]]] = {"number": [], "date": []}
        self.rounding = Rounding()
        self.words: set[str] = set()  # all of them, or over MOST_WORDS

    def add(self, cells: pa.Array) -> None:
        missing = gaps(cells)
        self.empty += int(missing.sum())
        self.filled += int((~missing).sum())
        self.is_category |= pa.types.is_dictionary(cells.type)
        for kind in _MEASURED:
            values = to_numbers(cells) if kind == "number" else to_days(cells)
            self.values[kind].append(values[np.isfinite(values)])
        self.rounding.add(self.values["number"][-1][:, None])
        if len(self.words) <= MOST_WORDS:
            self.words.update(pc.unique(to_words(cells).filter(pa.array(~missing))).to_pylist())

    def column(self, name: str) -> Column | None:
        """Return how to encode the column; None if there is nothing to learn from it."""
        for kind in _MEASURED:
            values = np.concatenate(self.values[kind])
            if self.filled and not self.is_category and len(values) >= MAJORITY * self.filled:
                wide = kind == "number" and bool(self.rounding.loss())
                scale = max(float(np.ptp(values)), 1e-300) if wide else 1.0
                return Column(name, kind, float(values.mean()), scale, gaps=self.empty > 0)
        if not self.filled or len(self.words) > MOST_WORDS:
            return None
        return Column(name, "word", words=tuple(sorted(self.words)), gaps=self.empty > 0)

    @property
    def is_plain(self) -> bool:
        """Whether all cells are numbers that float32 holds."""
        numbers = sum(map(len, self.values["number"]))
        return not self.is_category and not self.empty and numbers == self.filled and not self.rounding.loss()


class Survey(Columns):
    """Looks at all cells of a training table, block by block, and finds out how to encode them."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)
        self._summaries = {name: _Summary() for name in names}

    @property
    def width(self) -> int:
        """No numbers yet."""
        return 0

    def rows(self, cells: pa.RecordBatch, labels: Sequence[Label] = ()) -> Rows:
        """Look at cells; return the same number of rows, without numbers."""
        for name, summary in self._summaries.items():
            own = cells.column(name)
            if pa.types.is_floating(own.type) and bool(np.isinf(to_numbers(own)).any()):
                raise DataError(f"column {name!r} holds infinity, or a list of another length than the first: correct it")
            summary.add(own)
        return Rows(np.empty((cells.num_rows, 0), np.float32), [""] * cells.num_rows, labels)

    def encoding(self) -> tuple[TableEncoding | None, str]:
        """Return the encoding, or None for a table of plain numbers; and a note about columns that are left out."""
        if all(summary.is_plain for summary in self._summaries.values()):
            return None, ""
        columns = {name: summary.column(name) for name, summary in self._summaries.items()}
        if not any(columns.values()):
            name = self.names[0]
            raise InputError(f"there is nothing to learn from: column {name!r} is empty, or has over {MOST_WORDS} words")
        words = f"has over {MOST_WORDS} different words"
        notes = [
            f"column {name!r} {words if self._summaries[name].filled else 'is empty'}"
            for name, column in columns.items()
            if column is None
        ]
        more = f" (and {len(notes) - 3} more)" if len(notes) > 3 else ""
        note = f"left out: {', '.join(notes[:3])}{more}" if notes else ""
        return TableEncoding([column for column in columns.values() if column]), note


class TextColumns(Columns):
    """Finds the columns that have cells, but none that is a number."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)
        self.found: list[str] = []

    @property
    def width(self) -> int:
        """No numbers."""
        return 0

    def rows(self, cells: pa.RecordBatch, labels: Sequence[Label] = ()) -> Rows:
        """Note the columns; return the same number of rows, without numbers."""
        for name in self.names:
            own = cells.column(name)
            if not np.isfinite(to_numbers(own)).any() and not gaps(own).all():
                self.found.append(name)
        return Rows(np.empty((cells.num_rows, 0), np.float32), [""] * cells.num_rows, labels)


def rows_from_cells(cells: pa.RecordBatch, columns: Sequence[str], label: str | None = None) -> Rows:
    """Convert the feature columns to numbers; a row with a missing cell or one that is not a finite number has an error.

    Columns of a `TableEncoding` may hold words, dates and gaps.

    >>> cells = pa.RecordBatch.from_pydict({"x": ["1", "two"], "y": ["3", "4"], "label": ["a", "b"]})
    >>> rows = rows_from_cells(cells, ["y", "x"], "label")
    >>> rows.inputs.tolist(), rows.errors, rows.labels
    ([[3.0, 1.0], [0.0, 0.0]], ['', "column 'x' is not a finite number ('two')"], ['a', 'b'])
    """
    labels: list[Label] = []
    if label:
        names = cells.column(label)
        labels = (names.cast(pa.string()) if pa.types.is_binary(names.type) else names).to_pylist()
    if isinstance(columns, Columns):
        return columns.rows(cells, labels)
    numbers = np.empty((cells.num_rows, len(columns)), order="F")  # columns are written one by one
    for column, name in enumerate(columns):
        numbers[:, column] = to_numbers(cells.column(name))

    def explain(row: int, column: int) -> str:
        cell = cells.column(columns[column])[row].as_py()
        text = "" if cell is None else str(cell)
        what = f"is not a finite number ({text[:40]!r})" if text.strip() else "is empty"
        return f"column {columns[column]!r} {what}"

    return rows_from_numbers(numbers, labels, explain)


def frame_cells(frame: Any) -> pa.RecordBatch:
    """Return a frame as one batch of cells."""
    try:
        table = pa.Table.from_batches([frame]) if isinstance(frame, pa.RecordBatch) else pa.table(frame)
        batches = table.combine_chunks().to_batches()
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise InputError(f"the frame's columns are not of one type each ({error}): convert them first") from None
    return batches[0] if batches else pa.RecordBatch.from_pylist([], schema=table.schema)


def frame_rows(frame: Any, columns: Sequence[str]) -> Rows:
    """Convert a frame's columns, found by name, as those of a file."""
    cells = frame_cells(frame)
    known = set(cells.schema.names)
    if missing := [name for name in columns if name not in known]:
        raise InputError(f"the frame lacks column {missing[0]!r}: it has {', '.join(cells.schema.names)}")
    return rows_from_cells(cells, columns)


def named_columns(cells: pa.RecordBatch) -> list[str]:
    """Return the names of all columns but an index of pandas."""
    return [name for name in cells.schema.names if not PANDAS_INDEX.fullmatch(name)]


def surveyed(cells: pa.RecordBatch, names: Sequence[str]) -> TableEncoding | None:
    """Return how to encode training cells; None for plain numbers."""
    survey = Survey(names)
    survey.rows(cells)
    return survey.encoding()[0]
