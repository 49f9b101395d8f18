"""Batch scoring: score a whole source into a table, batch by batch, so that memory does not grow with the source."""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet

from besnn.data import Batch, ImageSpec, Inputs, stream
from besnn.errors import InputError
from besnn.storage.files import whole_file

if TYPE_CHECKING:
    from besnn.detector import Detector, Predictions  # brings in torch, which readers on a cluster do without

SCHEMA = pa.schema(
    [
        ("input", pa.string()),
        ("label", pa.string()),
        ("probability", pa.float32()),
        ("score", pa.float32()),
        ("p_value", pa.float64()),
        ("is_ood", pa.bool_()),
        ("error", pa.string()),
        ("decision", pa.string()),
        ("label_set", pa.string()),
    ]
)
"""One row per input: its name, the prediction (null if it could not be scored), the error (else empty), and the decision with
the labels that the input may have, separated by |."""

IMAGE_ROWS, TABLE_ROWS = 256, 8192
"""Inputs per batch."""

Write = Callable[[pa.RecordBatch], None]


@dataclass
class Tally:
    """Counts over the rows of a table of scores: all, flagged as out-of-distribution, failed, unsure; and the first error."""

    inputs: int = 0
    flagged: int = 0
    failed: int = 0
    first_error: str = ""
    unsure: int = 0

    def add(self, rows: pa.RecordBatch) -> None:
        """Add scored rows to the counts."""
        errors = [error for error in rows["error"].to_pylist() if error]
        unsure = pc.sum(pc.equal(rows["decision"], "unsure")).as_py() or 0
        self.merge(Tally(rows.num_rows, rows["is_ood"].true_count, len(errors), next(iter(errors), ""), unsure))

    def merge(self, later: "Tally") -> None:
        """Add the counts of later rows."""
        self.inputs += later.inputs
        self.flagged += later.flagged
        self.failed += later.failed
        self.unsure += later.unsure
        self.first_error = self.first_error or later.first_error


def score_file(
    detector: "Detector",
    source: str,
    target: Path,
    *,
    label: str = "label",
    data_dir: Path | None = None,
    progress: Callable[[int], None] = lambda rows: None,
    fdr: float | None = None,
) -> Tally:
    """Score every input of a source, in order, into a `.parquet`, `.csv` or `.jsonl` file that appears whole or not at all.

    The detector must be calibrated. The source is as `besnn.data.stream` takes it; the class column of a table is ignored.
    `progress` is called with the number of inputs after each batch. With `fdr` the flags are those of `benjamini_hochberg` over
    the whole source; the rows then wait in memory until its last input is scored.
    """
    tally = Tally()

    def scored() -> Iterator[pa.RecordBatch]:
        for rows in score_batches(detector, open_inputs(detector, source, label=label, data_dir=data_dir)):
            yield rows
            progress(rows.num_rows)

    with table_writer(target, SCHEMA) as write:
        for rows in scored() if fdr is None else control_fdr(scored(), fdr):
            write(rows)
            tally.add(rows)
    return tally


def strangest_inputs(
    detector: "Detector", source: str, most: int, *, label: str = "label", data_dir: Path | None = None
) -> tuple[list[str], Inputs, int]:
    """Return the names and inputs of the strangest inputs that are not `known`, at most `most`, and how many there are."""
    kept: list[tuple[float, str, Inputs]] = []
    total = 0
    for batch in open_inputs(detector, source, label=label, data_dir=data_dir):
        good = np.flatnonzero(batch.good)
        predictions = detector.predict(batch.inputs[good])
        unknown = np.flatnonzero(predictions.decision != "known")
        total += len(unknown)
        kept += [(float(predictions.score[row]), batch.ids[good[row]], batch.inputs[good[row]].copy()) for row in unknown]
        kept = sorted(kept, key=lambda each: -each[0])[:most]
    dtype = np.uint8 if image_spec(detector) else np.float32
    inputs = np.stack([each for *_, each in kept]) if kept else np.zeros((0, *detector.input_shape), dtype)
    return [name for _, name, _ in kept], inputs, total


def control_fdr(batches: Iterable[pa.RecordBatch], q: float) -> list[pa.RecordBatch]:
    """Return rows of `SCHEMA` with the flags of `benjamini_hochberg` over all of them, as `Predictions.control_fdr` does."""
    from besnn.detection import benjamini_hochberg

    rows = pa.Table.from_batches(batches, SCHEMA)
    scored = rows["p_value"].is_valid().to_numpy()
    flags = np.zeros(len(rows), bool)
    flags[scored] = benjamini_hochberg(rows["p_value"].drop_null().to_numpy(), q)
    is_ood = pa.chunked_array([pa.array(flags, mask=~scored)])
    cleared = pc.and_(rows["is_ood"], pc.invert(is_ood))
    changed = {
        "is_ood": is_ood,
        "decision": pc.if_else(is_ood, "unknown", pc.if_else(cleared, "unsure", rows["decision"])),
        "label_set": pc.if_else(is_ood, "", pc.if_else(cleared, rows["label"], rows["label_set"])),
    }
    for name, column in changed.items():
        rows = rows.set_column(SCHEMA.get_field_index(name), SCHEMA.field(name), column)
    return list(rows.to_batches())


def open_inputs(detector: "Detector", source: str, *, label: str = "label", data_dir: Path | None = None) -> Iterator[Batch]:
    """Stream the inputs of a source in the form that a detector takes."""
    if (image := image_spec(detector)) is not None:
        return stream(source, batch_size=IMAGE_ROWS, image=image, data_dir=data_dir)
    return stream(source, batch_size=TABLE_ROWS, columns=detector.columns, label=label, data_dir=data_dir)


def image_spec(detector: "Detector") -> ImageSpec | None:
    """Return the form in which a detector takes images; None for a detector of table rows."""
    if len(detector.input_shape) == 1:
        return None
    channels, height, width = detector.input_shape
    return ImageSpec((height, width), channels, detector.preprocessing.short_side)


def score_batches(detector: "Detector", batches: Iterable[Batch]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of `SCHEMA` for each batch; an input with an error has nulls for its prediction."""
    for batch in batches:
        yield as_rows(batch, detector.predict(batch.inputs[batch.good]), detector.class_names)


def as_rows(batch: Batch, predictions: "Predictions", class_names: Sequence[str]) -> pa.RecordBatch:
    """Return the rows of `SCHEMA` for a batch and the predictions for its good inputs."""
    good = np.flatnonzero(batch.good)
    place = np.full(len(batch.ids), -1)
    place[good] = np.arange(len(good))
    where = pa.array(place, mask=place < 0)  # taking a null index gives a null
    columns = {
        "label": predictions.labels.astype(str),
        "probability": predictions.probabilities.max(axis=1, initial=0.0),
        "score": predictions.score,
        "p_value": predictions.p_value,
        "is_ood": predictions.is_ood,
        "decision": predictions.decision,
        "label_set": ["|".join(names) for names in predictions.named_label_sets(class_names)],
    }
    arrays = {name: pa.array(values, SCHEMA.field(name).type).take(where) for name, values in columns.items()}
    arrays |= {"input": pa.array(batch.ids), "error": pa.array(batch.errors)}
    return pa.RecordBatch.from_arrays([arrays[name] for name in SCHEMA.names], schema=SCHEMA)


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
