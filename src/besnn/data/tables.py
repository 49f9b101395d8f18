"""Tables in CSV or parquet files, read in blocks: numeric features and, optionally, a column of classes."""

import codecs
import csv
import gzip
import re
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from io import TextIOWrapper
from itertools import chain, dropwhile
from pathlib import Path
from typing import IO, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet

from besnn.data.cells import to_numbers
from besnn.data.encoding import PANDAS_INDEX, rows_from_cells
from besnn.data.rows import Rows
from besnn.errors import DataError, one_line

BLOCK_ROWS = 8192
BLOCK_BYTES = 1 << 20
BLOCK_BYTES_PER_COLUMN = 1 << 10
"""A wide table is read in larger blocks: with a few rows per block, most of the time would go into the columns' overhead."""
LARGEST_BLOCK = 1 << 26
HEADER_BYTES = 1 << 24
MOST_COLUMNS = 1 << 20
SEPARATORS = ",;\t|"

_UTF16_MARKS = codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE


class Csv:
    """Values with a header, separated by commas, semicolons, tabs or vertical bars, also compressed (a `besnn.data.Format`)."""

    is_table = True

    def columns(self, path: Path) -> tuple[str, ...]:
        """Return the names of the columns."""
        with valid_utf8(path) as file:
            names = tuple(numbered(_header(file)[1]))
        if any("\0" in name for name in names):  # UTF-16 without its mark
            raise DataError(f"{path} is not text in UTF-8: save it as CSV with that encoding")
        return names

    def count(self, path: Path) -> int:
        """Return the number of lines after the header; a cell with a line break counts twice."""
        with _opened(path) as file:
            return max(0, sum(block.count(b"\n") for block in iter(lambda: file.read(BLOCK_BYTES), b"")) - 1)

    def read(self, path: Path, columns: Sequence[str], label: str | None = None) -> Iterator[Rows]:
        """Yield all rows in order; a row with too few or too many cells has an error."""
        ragged: dict[int, str] = {}
        start = 0
        with _open_csv(path, _wanted(columns, label), ragged) as (reader, separator):
            nothing = pa.RecordBatch.from_pylist([], schema=reader.schema)  # before ragged rows at the end
            for cells in chain(reader, [nothing]):
                end = start + cells.num_rows
                here = {}
                for row in sorted(ragged):
                    if row > end:
                        break
                    here[row - start] = ragged.pop(row)
                    end += 1
                if end > start:
                    cells = _with_decimal_points(cells) if separator == ";" else cells
                    yield _insert(rows_from_cells(cells, columns, label), here)
                start = end


class Parquet:
    """Apache Parquet (a `besnn.data.Format`)."""

    is_table = True

    def columns(self, path: Path) -> tuple[str, ...]:
        """Return the names of the columns; a column of lists, such as an embedding, counts as `name.0`, `name.1`, ..."""
        with pa.parquet.ParquetFile(path) as file:
            return tuple(name for field in file.schema_arrow for name in _names_of(field, file))

    def count(self, path: Path) -> int:
        """Return the number of rows, from the footer."""
        return int(pa.parquet.read_metadata(path).num_rows)

    def read(self, path: Path, columns: Sequence[str], label: str | None = None) -> Iterator[Rows]:
        """Yield all rows in order."""
        with pa.parquet.ParquetFile(path, pre_buffer=False, buffer_size=1 << 16) as file:
            lists = {field.name: list(_names_of(field, file)) for field in file.schema_arrow if _is_list(field.type)}
            owner = {part: name for name, parts in lists.items() for part in parts}
            wanted = dict.fromkeys(owner.get(name, name) for name in _wanted(columns, label))
            for cells in file.iter_batches(BLOCK_ROWS, columns=list(wanted)):
                yield rows_from_cells(_with_list_elements(cells, lists), columns, label)


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _names_of(field: pa.Field, file: pa.parquet.ParquetFile) -> Iterator[str]:
    """Yield the name of a column; of a column of lists one name per element of its first list."""
    if not _is_list(field.type):
        yield field.name
        return
    first = next(file.iter_batches(1, columns=[field.name]), None)
    length = len(first.column(0)[0].as_py() or ()) if first is not None and first.num_rows else 0
    yield from (f"{field.name}.{element}" for element in range(length))


def _with_list_elements(cells: pa.RecordBatch, lists: dict[str, list[str]]) -> pa.RecordBatch:
    """Replace columns of lists by one column per element; a list of another length becomes infinity: an error, not a gap."""
    columns: dict[str, pa.Array] = {}
    for name, column in zip(cells.schema.names, cells.columns, strict=True):
        if name not in lists:
            columns[name] = column
            continue
        whole = np.asarray(pc.fill_null(pc.equal(pc.list_value_length(column), len(lists[name])), False))
        numbers = np.full((len(column), len(lists[name])), np.inf)
        kept = pc.list_flatten(column.filter(pa.array(whole)))
        numbers[whole] = to_numbers(kept).reshape(-1, len(lists[name]))
        columns |= {part: pa.array(numbers[:, element]) for element, part in enumerate(lists[name])}
    return pa.RecordBatch.from_pydict(columns)


def choose_columns(names: Sequence[str], expected: Sequence[str] | int | None, label: str, table: str) -> Sequence[str]:
    """Return the feature columns among all `names`: those expected by name, else all (as many as expected) but the class.

    The index that pandas writes beside the columns is not a feature either: it would tell a sorted table's classes apart.
    """
    if repeated := sorted(name for name, count in Counter(names).items() if count > 1):
        raise DataError(f"{table} has two columns called {repeated[0]!r}: rename one")
    if expected is None or isinstance(expected, int):
        features = [name for name in names if name != label and not PANDAS_INDEX.fullmatch(name)]
        if not features or (expected is not None and len(features) != expected):
            wanted = "at least one" if expected is None else expected
            raise DataError(f"{table} has {len(features)} feature columns besides {label!r}: {wanted} expected")
        return features
    known = set(names)
    if missing := [name for name in expected if name not in known]:
        raise DataError(f"{table} lacks column {missing[0]!r}: it has {one_line(', '.join(names))}")
    return expected


def _wanted(columns: Sequence[str], label: str | None) -> list[str]:
    return [*columns, label] if label else list(columns)


def _insert(rows: Rows, ragged: dict[int, str]) -> Rows:
    """Insert ragged rows, given by their place and error."""
    if not ragged:
        return rows
    places = sorted(ragged)
    inputs = np.insert(rows.inputs, [place - count for count, place in enumerate(places)], 0, axis=0)
    errors, labels = list(rows.errors), list(rows.labels)
    for place in places:
        errors.insert(place, ragged[place])
        if labels:
            labels.insert(place, None)
    return Rows(inputs, errors, labels)


@contextmanager
def _open_csv(path: Path, columns: Sequence[str], ragged: dict[int, str]) -> Iterator[tuple[pa.csv.CSVStreamingReader, str]]:
    """Yield the rows of a CSV as text, and what separates its cells; ragged rows are skipped and noted in `ragged`."""

    def note(row: pa.csv.InvalidRow) -> str:
        ragged[row.number - 2] = f"{row.actual_columns} cells instead of {row.expected_columns}"  # row 1 is the header
        return "skip"

    as_text = pa.csv.ConvertOptions(column_types=dict.fromkeys(columns, pa.string()), include_columns=columns)
    with valid_utf8(path) as file:
        separator, header = _header(file)
        # threads would lose the numbers of skipped rows
        block = min(max(BLOCK_BYTES, BLOCK_BYTES_PER_COLUMN * len(header)), LARGEST_BLOCK)
        read_options = pa.csv.ReadOptions(use_threads=False, block_size=block)
        if (names := numbered(header)) != header:
            read_options.column_names, read_options.skip_rows_after_names = names, 1
        parse_options = pa.csv.ParseOptions(delimiter=separator, newlines_in_values=True, invalid_row_handler=note)
        with pa.csv.open_csv(str(file), read_options, parse_options, as_text) as reader:
            yield reader, separator


def _header(path: Path) -> tuple[str, list[str]]:
    """Return what separates a table's cells and the names of its columns; pyarrow would guess each column's type first.

    Commas separate cells unless something else occurs more often outside quotes.
    """
    with path.open(encoding="utf-8-sig", newline="") as text:
        lines = dropwhile(lambda line: not line.strip("\r\n"), iter(lambda: text.readline(HEADER_BYTES), ""))
        first = next(lines, "")
        unquoted = re.sub('"[^"]*"', "", first)
        separator = max(SEPARATORS, key=unquoted.count)
        names = next(csv.reader(chain([first], lines), delimiter=separator), [])
    if not names:
        raise ValueError("it is empty")
    if len(names) > MOST_COLUMNS:
        raise ValueError(f"it has {len(names):,} columns, more than {MOST_COLUMNS:,}")
    return separator, names


def numbered(names: Sequence[str]) -> list[str]:
    """Number columns that have the same name, as pandas does.

    >>> numbered(["x", "y", "x"])
    ['x', 'y', 'x.1']
    """
    found: list[str] = []
    seen: Counter[str] = Counter()
    for name in names:
        found.append(f"{name}.{seen[name]}" if seen[name] else name)
        seen[name] += 1
    return found


def _with_decimal_points(cells: pa.RecordBatch) -> pa.RecordBatch:
    """Replace decimal commas: where semicolons separate cells, that is what commas in numbers are."""
    columns = [pc.replace_substring_regex(column, r"^(\s*[+-]?\d*),(\d+\s*)$", r"\1.\2") for column in cells.columns]
    return pa.RecordBatch.from_arrays(columns, names=cells.schema.names)


def _opened(path: Path) -> IO[bytes]:
    """Open a file, decompressed if its name ends in .gz."""
    return cast("IO[bytes]", gzip.open(path)) if path.suffix.lower() == ".gz" else path.open("rb")


@contextmanager
def valid_utf8(path: Path) -> Iterator[Path]:
    r"""Yield a file of valid UTF-8: this one, or a copy in which bytes that are not UTF-8 are escaped, such as `\xff`.

    pyarrow would stop at the first such byte; this way it spoils only its own cell. pyarrow gets a file rather than a Python
    object because its thread reads ahead, and would abort the process if that ended meanwhile. A file that begins with
    UTF-16's byte-order mark, as some programs save CSV, is decoded; a compressed one is decompressed.
    """
    if path.suffix.lower() != ".gz" and _is_utf8(path):
        yield path
        return
    with _opened(path) as file:
        encoding = "utf-16" if file.read(2) in _UTF16_MARKS else "utf-8"
    with tempfile.NamedTemporaryFile() as copy, _opened(path) as file:
        text = TextIOWrapper(file, encoding, "backslashreplace", newline="")
        while part := text.read(BLOCK_BYTES):
            copy.write(part.encode())
        copy.flush()
        yield Path(copy.name)


def _is_utf8(path: Path) -> bool:
    with path.open(encoding="utf-8", newline="") as text, suppress(UnicodeDecodeError):
        while text.read(BLOCK_BYTES):
            pass
        return True
    return False
