"""Batch scoring: score a whole source into a table, batch by batch, so that memory does not grow with the source."""

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from besnn.data import Batch, ImageSpec, stream
from besnn.errors import InputError
from besnn.storage.files import whole_file

if TYPE_CHECKING:
    from besnn.detector import Detector  # brings in torch, which readers on a cluster do without

SCHEMA = pa.schema(
    [
        ("input", pa.string()),
        ("label", pa.string()),
        ("probability", pa.float32()),
        ("score", pa.float32()),
        ("p_value", pa.float64()),
        ("is_ood", pa.bool_()),
        ("error", pa.string()),
    ]
)
"""One row per input: its name, the prediction (null if it could not be scored), and the error (else empty)."""

IMAGE_ROWS, TABLE_ROWS = 256, 8192
"""Inputs per batch."""

Write = Callable[[pa.RecordBatch], None]


@dataclass
class Tally:
    """Counts over the rows of a table of scores: all, flagged as out-of-distribution, failed; and the first error."""

    inputs: int = 0
    flagged: int = 0
    failed: int = 0
    first_error: str = ""

    def add(self, rows: pa.RecordBatch) -> None:
        """Count scored rows in."""
        errors = [error for error in rows["error"].to_pylist() if error]
        self.merge(Tally(rows.num_rows, rows["is_ood"].true_count, len(errors), next(iter(errors), "")))

    def merge(self, later: "Tally") -> None:
        """Add the counts of later rows."""
        self.inputs += later.inputs
        self.flagged += later.flagged
        self.failed += later.failed
        self.first_error = self.first_error or later.first_error


def score_file(
    detector: "Detector",
    source: str,
    target: Path,
    *,
    label: str = "label",
    data_dir: Path | None = None,
    progress: Callable[[int], None] = lambda rows: None,
) -> Tally:
    """Score every input of a source, in order, into a `.parquet`, `.csv` or `.jsonl` file that appears whole or not at all.

    The detector must be calibrated. The source is as `besnn.data.stream` takes it; the class column of a table is ignored.
    `progress` is called with the number of inputs after each batch.
    """
    tally = Tally()
    with table_writer(target, SCHEMA) as write:
        for rows in score_batches(detector, open_inputs(detector, source, label=label, data_dir=data_dir)):
            write(rows)
            tally.add(rows)
            progress(rows.num_rows)
    return tally


def open_inputs(detector: "Detector", source: str, *, label: str = "label", data_dir: Path | None = None) -> Iterator[Batch]:
    """Stream the inputs of a source in the form that a detector takes."""
    if (image := image_spec(detector)) is not None:
        return stream(source, batch_size=IMAGE_ROWS, image=image, data_dir=data_dir)
    columns = detector.feature_names or detector.input_shape[0]
    return stream(source, batch_size=TABLE_ROWS, columns=columns, label=label, data_dir=data_dir)


def image_spec(detector: "Detector") -> ImageSpec | None:
    """Return the form in which a detector takes images; None for a detector of table rows."""
    if len(detector.input_shape) == 1:
        return None
    channels, height, width = detector.input_shape
    return ImageSpec((height, width), channels, detector.preprocessing.short_side)


def score_batches(detector: "Detector", batches: Iterable[Batch]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of `SCHEMA` for each batch; an input with an error has nulls for its prediction."""
    for batch in batches:
        good = np.flatnonzero(batch.good)
        predictions = detector.predict(batch.inputs[good])
        place = np.full(len(batch.ids), -1)
        place[good] = np.arange(len(good))
        where = pa.array(place, mask=place < 0)  # taking a null index gives a null
        probability = predictions.probabilities.max(axis=1, initial=0.0)
        known = (predictions.labels.astype(str), probability, predictions.score, predictions.p_value, predictions.is_ood)
        columns = [pa.array(values, field.type).take(where) for values, field in zip(known, list(SCHEMA)[1:6], strict=True)]
        yield pa.RecordBatch.from_arrays([pa.array(batch.ids), *columns, pa.array(batch.errors)], schema=SCHEMA)


def require_table_path(path: Path) -> None:
    """Raise an InputError unless the extension of a path names a format."""
    if path.suffix.lower() not in _WRITERS:
        raise InputError(f"output {str(path)!r} has no known extension: end its name in {', '.join(_WRITERS)}")


@contextmanager
def table_writer(path: Path, schema: pa.Schema) -> Iterator[Write]:
    """Yield a function that appends rows to a file, which appears when the block ends without an error."""
    require_table_path(path)
    with whole_file(path) as partial, _WRITERS[path.suffix.lower()](partial, schema) as writer:
        yield writer.write_batch


@contextmanager
def _json_lines_writer(path: Path, schema: pa.Schema) -> Iterator[SimpleNamespace]:
    """Yield what pyarrow's writers have: a method `write_batch`."""
    with path.open("w", encoding="utf-8") as file:

        def write(rows: pa.RecordBatch) -> None:
            file.writelines(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows.to_pylist())

        yield SimpleNamespace(write_batch=write)


_WRITERS = {
    ".parquet": pa.parquet.ParquetWriter,
    ".csv": lambda path, schema: pa.csv.CSVWriter(path, schema, write_options=pa.csv.WriteOptions(quoting_style="needed")),
    ".jsonl": _json_lines_writer,
}
