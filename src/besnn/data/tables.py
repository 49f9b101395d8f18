"""Tables in `.csv` or `.parquet`, read block by block: numeric features and, perhaps, a column of classes."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from besnn.data.cells import reason_not_finite, to_labels, to_numbers
from besnn.data.dataset import Dataset
from besnn.data.rows import Block, collect
from besnn.data.utf8 import valid_utf8
from besnn.errors import DataError, one_line

BLOCK_ROWS = 8192


def column_names(path: Path) -> tuple[str, ...]:
    """Return the names of a table's columns."""
    with table_errors(path):
        if _is_csv(path):
            with _open_csv(path, [], {}) as reader:
                return tuple(reader.schema.names)
        return tuple(pa.parquet.read_schema(path).names)


def read_blocks(path: Path, columns: Sequence[str], label: str | None = None, *, exact: bool = False) -> Iterator[Block]:
    """Yield a table's rows as numbers, the `exact` ones too if asked; a bad row has its reason and does not stop the rest."""
    wanted = [*columns, label] if label else list(columns)
    read = _csv_batches if _is_csv(path) else _parquet_batches
    with table_errors(path):
        for batch, ragged in read(path, wanted):
            yield _insert(to_block(batch, columns, label, exact=exact), ragged)


def load_table(path: Path, *, label: str = "label", columns: Sequence[str] | None = None) -> Dataset:
    """Load a whole table.

    Args:
        path: a `.csv` or `.parquet` file.
        label: the column that holds the class; without a column of the usual name `label` the set has no labels.
        columns: the feature columns, in order; all but the class where not given.
    """
    names = column_names(path)
    if label not in names and label != "label":
        raise DataError(f"{path} has no column {label!r}: its columns are {one_line(', '.join(names))}")
    label_column = label if label in names else None
    features = feature_columns(path, columns, label)
    blocks = read_blocks(path, features, label_column, exact=True)
    return collect(blocks, path, labelled=label_column is not None, feature_names=tuple(features))


def feature_columns(path: Path, expected: Sequence[str] | int | None, label: str) -> list[str]:
    """Return the columns to read: those expected by name, else all but the class (as many as are expected)."""
    return choose_columns(column_names(path), expected, label, table=str(path))


def choose_columns(names: Sequence[str], expected: Sequence[str] | int | None, label: str, table: str) -> list[str]:
    """Return the columns to read, as `feature_columns` does, for a table that has the columns `names`."""
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise DataError(f"{table} has two columns called {twice[0]!r}: rename one")
    if expected is None or isinstance(expected, int):
        features = [name for name in names if name != label]
        if not features or (expected is not None and len(features) != expected):
            wanted = "at least one" if expected is None else expected
            raise DataError(f"{table} has {len(features)} feature columns beside {label!r}: {wanted} expected")
        return features
    if missing := [name for name in expected if name not in names]:
        raise DataError(f"{table} lacks column {missing[0]!r}: it has {one_line(', '.join(names))}")
    return list(expected)


@contextmanager
def table_errors(name: str | Path) -> Iterator[None]:
    """Turn pyarrow's errors, and the system's, into DataErrors."""
    try:
        yield
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise DataError(f"{name} cannot be read as a table ({one_line(error)}): save it again as .csv or .parquet") from error


def _is_csv(path: Path) -> bool:
    return path.suffix.lower() == ".csv"


@contextmanager
def _open_csv(path: Path, columns: Sequence[str], ragged: dict[int, str]) -> Iterator[pa.csv.CSVStreamingReader]:
    """Open a CSV with its columns as text; rows with too few or too many cells are skipped and noted in `ragged`."""

    def note(row: pa.csv.InvalidRow) -> str:
        ragged[row.number - 2] = f"{row.actual_columns} cells instead of {row.expected_columns}"  # row 1 is the header
        return "skip"

    read_options = pa.csv.ReadOptions(use_threads=False)  # threads would lose the numbers of skipped rows
    parse_options = pa.csv.ParseOptions(newlines_in_values=True, invalid_row_handler=note)
    as_text = pa.csv.ConvertOptions(column_types=dict.fromkeys(columns, pa.string()), include_columns=columns)
    with valid_utf8(path) as file, pa.csv.open_csv(str(file), read_options, parse_options, as_text) as reader:
        yield reader


def _csv_batches(path: Path, columns: Sequence[str]) -> Iterator[tuple[pa.RecordBatch, dict[int, str]]]:
    """Yield batches of cells as text, each with the ragged rows that belong in it by their place among its rows."""
    ragged: dict[int, str] = {}
    start = 0
    with _open_csv(path, columns, ragged) as reader:
        for batch in reader:
            end = start + batch.num_rows
            here = {}
            for row in sorted(ragged):
                if row > end:
                    break
                here[row - start] = ragged.pop(row)
                end += 1
            yield batch, here
            start = end
    if ragged:
        nothing = {name: pa.array([], pa.string()) for name in columns}
        yield pa.RecordBatch.from_pydict(nothing), {row - start: reason for row, reason in sorted(ragged.items())}


def _parquet_batches(path: Path, columns: Sequence[str]) -> Iterator[tuple[pa.RecordBatch, dict[int, str]]]:
    """Yield batches of a parquet file, which has no ragged rows."""
    with pa.parquet.ParquetFile(path, pre_buffer=False, buffer_size=1 << 16) as file:
        for batch in file.iter_batches(BLOCK_ROWS, columns=list(columns)):
            yield batch.select(list(columns)), {}


def to_block(batch: pa.RecordBatch, columns: Sequence[str], label: str | None = None, *, exact: bool = False) -> Block:
    """Turn cells into numbers; rows with a cell that is missing or no finite number get an error."""
    numbers = np.empty((batch.num_rows, len(columns)), np.float64 if exact else np.float32)
    with np.errstate(over="ignore"):  # too large for float32: infinite, and reported as such
        for place, name in enumerate(columns):
            numbers[:, place] = to_numbers(batch.column(name))
        inputs = numbers.astype(np.float32, copy=False)
    errors = [""] * batch.num_rows
    finite = np.isfinite(inputs)
    for row in np.flatnonzero(~finite.all(axis=1)):
        name = columns[int(np.argmin(finite[row]))]
        errors[row] = reason_not_finite(name, batch.column(name)[int(row)].as_py())
        inputs[row] = 0
    return Block(inputs, errors, to_labels(batch.column(label)) if label else [], numbers if exact else None)


def _insert(block: Block, ragged: dict[int, str]) -> Block:
    """Put ragged rows back in their places."""
    if not ragged:
        return block
    places = sorted(ragged)
    inputs = np.insert(block.inputs, [place - count for count, place in enumerate(places)], 0, axis=0)
    errors, labels = list(block.errors), list(block.labels)
    for place in places:
        errors.insert(place, ragged[place])
        if labels:
            labels.insert(place, None)
    return Block(inputs, errors, labels)
