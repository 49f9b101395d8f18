"""Watching a file of scores, as `besnn score` writes it, for drift; some rows at a time."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
from numpy.typing import NDArray

from besnn.detection import ConformalThreshold, DriftMonitor, DriftStatus
from besnn.errors import BesnnError, DataError, InputError, one_line
from besnn.serve.drift import DriftStore

ROWS = 65_536
CELLS = 1000
SCHEMA = pa.schema([("score", pa.float32()), ("p_value", pa.float64()), ("is_ood", pa.bool_())])


@dataclass(frozen=True)
class Watched:
    """How watching a file went.

    Attributes:
        status: where the stream stands, with what went before this file.
        inputs: rows that were scored.
        skipped: rows without a score.
        flagged: rows that were declared out-of-distribution.
    """

    status: DriftStatus
    inputs: int
    skipped: int
    flagged: int


class Scores(NamedTuple):
    """Some rows of a file, each `[n]`, and how many between them had no score."""

    score: NDArray[np.float64]
    p_value: NDArray[np.float64]
    is_ood: NDArray[np.bool_]
    skipped: int


def monitor_file(
    path: Path,
    threshold: ConformalThreshold | None = None,
    *,
    alarm_level: float = 100.0,
    window: int = 1000,
    state: Path | None = None,
) -> Watched:
    """Runs a drift monitor over a `.parquet`, `.csv` or `.jsonl` file of scores, in its order.

    Args:
        path: the file.
        threshold: of the detector that made the scores: they are then compared with those of its calibration. Without it,
            the p-values of the stream are compared with each other, so only a change within the stream can be seen.
        alarm_level: L; a false alarm is ever raised with a probability of at most 1/L.
        window: how many of the last inputs the rate of out-of-distribution ones is taken over.
        state: a file that keeps the monitor, so that one file of scores continues where the last one ended; it needs a
            threshold.
    """
    if state is not None and threshold is None:
        raise InputError("a state needs the model that made the scores: give the model too")
    monitor = _monitor(path, threshold, alarm_level, window)
    store = DriftStore(state)
    inputs = skipped = flagged = 0
    try:
        with store.document() as document:
            store.restore(monitor, document)
            for rows in read_scores(path):
                _check_origin(path, threshold, rows)
                monitor.update(1 - rows.p_value if threshold is None else rows.score)
                inputs += len(rows.score)
                skipped += rows.skipped
                flagged += int(rows.is_ood.sum())
            document["monitor"] = monitor.state_dict()
    finally:
        store.close()
    return Watched(monitor.status(), inputs, skipped, flagged)


def _monitor(path: Path, threshold: ConformalThreshold | None, alarm_level: float, window: int) -> DriftMonitor:
    if threshold is not None:
        return DriftMonitor.from_calibration(threshold.scores, threshold.threshold, CELLS, alarm_level, window)
    # Strangeness is 1 − p. What the file flags is what is stranger than all that it does not.
    accepted = max((float((1 - rows.p_value[~rows.is_ood]).max(initial=-1)) for rows in read_scores(path)), default=-1.0)
    return DriftMonitor(np.linspace(0, 1, CELLS + 1)[1:-1], accepted, alarm_level=alarm_level, window=window)


def _check_origin(path: Path, threshold: ConformalThreshold | None, rows: Scores) -> None:
    """Refuses scores that another model, or another calibration of this one, made."""
    if threshold is not None and not np.allclose(threshold.p_values(rows.score), rows.p_value, rtol=0, atol=1e-9):
        raise DataError(f"{path} was not made by this model as it is calibrated now: score the inputs again")


def read_scores(path: Path) -> Iterator[Scores]:
    """The rows of a file of scores, some at a time, without those that have no score."""
    reader = _READERS.get(path.suffix.lower())
    if reader is None:
        raise InputError(f"{path} is no file of scores: give one that besnn score wrote ({', '.join(_READERS)})")
    try:
        for batch in reader(path):
            rows = pa.Table.from_batches([batch]).select(SCHEMA.names).cast(SCHEMA)
            scored = rows.drop_null()
            score, p_value, is_ood = (column.to_numpy() for column in scored.columns)
            yield Scores(score.astype(np.float64), p_value, is_ood.astype(bool), rows.num_rows - scored.num_rows)
    except (pa.ArrowException, OSError, KeyError, TypeError, ValueError) as error:
        if isinstance(error, BesnnError):
            raise
        reason = one_line(error)[:200]
        raise DataError(f"{path} cannot be read as scores ({reason}): give a file that besnn score wrote") from None


def _parquet(path: Path) -> Iterator[pa.RecordBatch]:
    with pa.parquet.ParquetFile(path) as file:
        yield from file.iter_batches(ROWS, columns=SCHEMA.names)


def _csv(path: Path) -> Iterator[pa.RecordBatch]:
    convert = pa.csv.ConvertOptions(include_columns=SCHEMA.names, column_types=SCHEMA)
    with pa.csv.open_csv(path, convert_options=convert) as reader:
        yield from reader


def _json_lines(path: Path) -> Iterator[pa.RecordBatch]:
    with path.open(encoding="utf-8") as file:
        while rows := [json.loads(line) for line in islice(file, ROWS)]:
            yield pa.RecordBatch.from_pydict({name: [row[name] for row in rows] for name in SCHEMA.names}, SCHEMA)


_READERS: dict[str, Callable[[Path], Iterator[pa.RecordBatch]]] = {".parquet": _parquet, ".csv": _csv, ".jsonl": _json_lines}
