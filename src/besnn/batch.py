"""Scoring a whole source into a file, a batch at a time: memory does not grow with the source."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from besnn.data import Batch, ImageSpec, stream
from besnn.detector import Detector
from besnn.writers import table_writer

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
"""One row an input: what names it, what the detector says of it (null where it could not be scored), and why not (empty)."""

IMAGE_ROWS, TABLE_ROWS = 256, 8192


@dataclass
class Tally:
    """How scoring a source went.

    Attributes:
        inputs: all that were read.
        flagged: declared out-of-distribution.
        failed: could not be scored.
        first_error: what was wrong with the first of those.
    """

    inputs: int = 0
    flagged: int = 0
    failed: int = 0
    first_error: str = ""

    def add(self, rows: pa.RecordBatch) -> None:
        """Counts some scored rows in."""
        errors = [error for error in rows["error"].to_pylist() if error]
        self.inputs += rows.num_rows
        self.flagged += rows["is_ood"].true_count
        self.failed += len(errors)
        self.first_error = self.first_error or next(iter(errors), "")


def score_file(
    detector: Detector,
    source: str,
    target: Path,
    *,
    label: str = "label",
    data_dir: Path | None = None,
    progress: Callable[[int], None] | None = None,
) -> Tally:
    """Scores every input of a source, in order, into a `.parquet`, `.csv` or `.jsonl` file that appears whole or not at all.

    Args:
        detector: calibrated.
        source: as `besnn.data.stream` takes it.
        target: the file to write.
        label: a table's class column, which is not looked at.
        data_dir: where built-in sets lie.
        progress: told the number of inputs after each batch.
    """
    tally = Tally()
    with table_writer(target, SCHEMA) as write:
        for rows in score_batches(detector, open_inputs(detector, source, label=label, data_dir=data_dir)):
            write(rows)
            tally.add(rows)
            if progress is not None:
                progress(rows.num_rows)
    return tally


def open_inputs(detector: Detector, source: str, *, label: str = "label", data_dir: Path | None = None) -> Iterator[Batch]:
    """The inputs of a source in the form that a detector takes, some at a time."""
    if (image := image_spec(detector)) is not None:
        return stream(source, batch_size=IMAGE_ROWS, image=image, data_dir=data_dir)
    columns = detector.feature_names or detector.input_shape[0]
    return stream(source, batch_size=TABLE_ROWS, columns=columns, label=label, data_dir=data_dir)


def image_spec(detector: Detector) -> ImageSpec | None:
    """The form that a detector takes images in; None for a detector of table rows."""
    if len(detector.input_shape) == 1:
        return None
    channels, height, width = detector.input_shape
    return ImageSpec((height, width), channels)


def score_batches(detector: Detector, batches: Iterable[Batch]) -> Iterator[pa.RecordBatch]:
    """Each batch's rows of `SCHEMA`; an input with an error gets its row too, with nulls for what is not known."""
    for batch in batches:
        good = np.flatnonzero(batch.good)
        predictions = detector.predict(batch.inputs[good])
        place = np.full(len(batch.ids), -1)
        place[good] = np.arange(len(good))
        where = pa.array(place, mask=place < 0)  # taking a null index gives a null
        probability = predictions.probabilities.max(axis=1, initial=0.0)
        known = (predictions.labels, probability, predictions.score, predictions.p_value, predictions.is_ood)
        columns = [pa.array(values, field.type).take(where) for values, field in zip(known, list(SCHEMA)[1:6], strict=True)]
        yield pa.RecordBatch.from_arrays([pa.array(batch.ids), *columns, pa.array(batch.errors)], schema=SCHEMA)
