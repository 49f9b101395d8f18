"""The file formats that besnn reads, by suffix: a new format is one class and one entry in `FORMATS`."""

import shlex
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from besnn.data.dataset import Dataset
from besnn.data.encoding import Survey, TableEncoding, TextColumns
from besnn.data.npz import Npz
from besnn.data.rows import Rows, collect
from besnn.data.tables import Csv, Parquet, choose_columns
from besnn.errors import DataError, InputError, one_line, reading


class Format(Protocol):
    """How to read one kind of file. Loading, streaming, scoring on Ray and error messages all follow from this.

    A reader may raise any exception about a malformed file; users see it as a one-line DataError.

    Attributes:
        is_table: whether the file holds a table whose columns have names, rather than an array of images or rows.

    >>> FORMATS[".csv"].is_table, FORMATS[".npz"].is_table
    (True, False)
    """

    is_table: bool

    def columns(self, path: Path) -> tuple[str, ...]:
        """Return the names of a table's columns; an empty tuple for arrays."""
        ...

    def read(self, path: Path, columns: Sequence[str], label: str | None = None) -> Iterator[Rows]:
        """Yield all rows of a file in order, a few thousand at a time, so that memory does not grow with the file.

        Args:
            path: the file.
            columns: the feature columns of a table, in order; empty for arrays.
            label: the class column of a table; for arrays, anything but None asks for the labels, if there are any.
        """
        ...


FORMATS: dict[str, Format] = {".npz": Npz(), ".csv": Csv(), ".tsv": Csv(), ".gz": Csv(), ".parquet": Parquet()}
"""The format of a data file, by its suffix in lower case. See `besnn.data.Format`."""


def describe_formats() -> str:
    """Return what messages call the files that can be read: `a data file (.npz, .csv, ...)`."""
    return f"a data file ({', '.join(FORMATS)})"


def column_names(path: Path) -> tuple[str, ...]:
    """Return the names of the columns of a table file; an empty tuple for files of arrays."""
    with reading(path):
        return FORMATS[path.suffix.lower()].columns(path)


def load_file(path: Path, *, label: str = "label", columns: Sequence[str] | None = None, skip_bad: bool = False) -> Dataset:
    """Load a whole file; a bad row is an error unless `skip_bad`. A table without a column called `label` has no labels."""
    if not FORMATS[path.suffix.lower()].is_table:
        return collect(_read(path, (), label), path, skip_bad=skip_bad)
    names = column_names(path)
    if label not in names and label != "label":
        raise DataError(f"{path} has no column {label!r}: its columns are {one_line(', '.join(names))}")
    features = choose_columns(names, columns, label, table=str(path))
    if columns is None and label in names:
        return _learn_columns(path, names, features, label, skip_bad)
    try:
        dataset = _load_table(path, features, label if label in names else None, skip_bad)
    except DataError:
        if label not in names and (text := _text_column(path, features)) is not None:
            hint = f"if it holds the classes, name it with --label {shlex.quote(text)}"
            raise DataError(f"{path} has no column {label!r}, and column {text!r} holds no numbers: {hint}") from None
        raise
    return _with_note(dataset, _index_note(names, features, label) if columns is None else "")


def _learn_columns(path: Path, names: Sequence[str], features: Sequence[str], label: str, skip_bad: bool) -> Dataset:
    """Load a table to learn from: its numbers as they are, or else encoded as what its columns hold."""
    note = _index_note(names, features, label)
    with suppress(DataError):  # which may also be about labels: then the second attempt says so
        plain = _load_table(path, features, label, skip_bad=True)
        if not plain.note and not plain.lost:
            return _with_note(plain, note)
    try:
        survey = Survey(features)
        for _ in _read(path, survey, label):
            pass
        encoding, left_out = survey.encoding()
    except InputError as error:
        raise DataError(f"{path}: {error}") from None
    return _with_note(_load_table(path, encoding or features, label, skip_bad), note, left_out)


def _load_table(path: Path, columns: Sequence[str], label: str | None, skip_bad: bool) -> Dataset:
    encoding = columns if isinstance(columns, TableEncoding) else None
    names = tuple(columns) if encoding is None else encoding.feature_names
    return replace(collect(_read(path, columns, label), path, names, skip_bad), encoding=encoding)


def _index_note(names: Sequence[str], features: Sequence[str], label: str) -> str:
    kept = {*features, label}
    dropped = [repr(name) for name in names if name not in kept]
    return f"column {', '.join(dropped)} is the row index that pandas wrote, and is left out" if dropped else ""


def _with_note(dataset: Dataset, *notes: str) -> Dataset:
    return replace(dataset, note="; ".join(filter(None, (*notes, dataset.note))))


def _text_column(path: Path, features: Sequence[str]) -> str | None:
    """Return the first column of other cells than numbers in the first rows; None if there is none."""
    columns = TextColumns(features)
    next(_read(path, columns), None)
    return next(iter(columns.found), None)


def count_rows(path: Path) -> int | None:
    """Count the rows of a file; None for a format without a method `count`."""
    count = getattr(FORMATS[path.suffix.lower()], "count", None)
    with reading(path):
        return None if count is None else int(count(path))


def stream_file(path: Path, *, label: str = "label", columns: Sequence[str] | int | None = None) -> Iterator[Rows]:
    """Yield the rows of a file, without labels; a bad row has an error and does not stop the others."""
    is_table = FORMATS[path.suffix.lower()].is_table
    return _read(path, choose_columns(column_names(path), columns, label, table=str(path)) if is_table else ())


def holds_table(path: Path) -> bool:
    """Whether a file holds rows of numbers rather than images."""
    if FORMATS[path.suffix.lower()].is_table:
        return True
    first = next(_read(path, ()), None)
    return first is not None and first.inputs.ndim == 2


def _read(path: Path, columns: Sequence[str], label: str | None = None) -> Iterator[Rows]:
    with reading(path):
        yield from FORMATS[path.suffix.lower()].read(path, columns, label)
