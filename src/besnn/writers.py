"""Tables written a batch at a time and put in place whole: parquet, CSV or JSON lines, by the file's extension."""

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from besnn.errors import InputError
from besnn.storage.files import atomic_path

Write = Callable[[pa.RecordBatch], None]


def require_table_path(path: Path) -> None:
    """Refuses a path whose extension names no format.

    >>> require_table_path(Path("scores.csv"))
    """
    if path.suffix.lower() not in _OPENERS:
        raise InputError(f"output {str(path)!r}: end its name in {', '.join(_OPENERS)}")


@contextmanager
def table_writer(path: Path, schema: pa.Schema) -> Iterator[Write]:
    r"""Yields a function that appends rows; the file takes its place when the block ends well, and never otherwise.

    >>> import tempfile
    >>> target = Path(tempfile.mkdtemp()) / "rows.jsonl"
    >>> with table_writer(target, pa.schema([("x", pa.int64())])) as write:
    ...     write(pa.RecordBatch.from_pydict({"x": [1, 2]}))
    >>> target.read_text()
    '{"x": 1}\n{"x": 2}\n'
    """
    require_table_path(path)
    with atomic_path(path) as partial, _OPENERS[path.suffix.lower()](partial, schema) as write:
        yield write


@contextmanager
def _open_parquet(path: Path, schema: pa.Schema) -> Iterator[Write]:
    with pa.parquet.ParquetWriter(path, schema) as writer:
        yield writer.write_batch


@contextmanager
def _open_csv(path: Path, schema: pa.Schema) -> Iterator[Write]:
    options = pa.csv.WriteOptions(quoting_style="needed")
    with pa.csv.CSVWriter(path, schema, write_options=options) as writer:
        yield writer.write_batch


@contextmanager
def _open_json_lines(path: Path, schema: pa.Schema) -> Iterator[Write]:
    with path.open("w", encoding="utf-8") as file:

        def write(batch: pa.RecordBatch) -> None:
            file.writelines(f"{json.dumps(row, ensure_ascii=False)}\n" for row in batch.to_pylist())

        yield write


_OPENERS: dict[str, Callable[[Path, pa.Schema], AbstractContextManager[Write]]] = {
    ".parquet": _open_parquet,
    ".csv": _open_csv,
    ".jsonl": _open_json_lines,
}
