"""The drift alarm over a stream of scores: its stored state, the service's traffic, and files that `besnn score` wrote.

`besnn monitor` uses this module without the extra `serve`, so it imports no web framework.
"""

import json
import logging
import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
from numpy.typing import NDArray
from pydantic import BaseModel, Field

from besnn.detection import ConformalThreshold, DriftMonitor, DriftStatus, MondrianThreshold
from besnn.detector import Predictions
from besnn.errors import BesnnError, DataError, InputError, one_line
from besnn.serve.settings import Settings

LOCK_SECONDS = 30.0
"""How long to wait for another process to finish its change of a store."""

SERVICE_LOCK_SECONDS = 1.0
"""The same in the service, whose clients wait."""

RECENT = 240
"""How many recent inputs a report lists."""

KEPT = 16_384
"""How many recent inputs are kept for another attempt when the store cannot be written."""

ROWS = 65_536
CELLS = 1000
_LOG = logging.getLogger(__name__)
SCHEMA = pa.schema([("score", pa.float32()), ("p_value", pa.float64()), ("is_ood", pa.bool_())])


class StoreUnavailableError(DataError):
    """A store cannot be read or written at the moment."""


class DriftStore:
    """A drift monitor's state as JSON in an SQLite file, which several processes change in turn, completely or not at all.

    Without a path there is no file, and the state is that of the monitor.
    """

    def __init__(self, path: Path | None, lock_seconds: float | None = None) -> None:
        self._path, self._lock_seconds = path, LOCK_SECONDS if lock_seconds is None else lock_seconds
        self._lock = threading.Lock()
        self._in_memory: dict[str, Any] = {}

    @contextmanager
    def stream(self, monitor: DriftMonitor) -> Iterator[dict[str, Any]]:
        """Let a monitor continue the stored stream within the block, while other threads and processes wait.

        Yields the stored document, which can hold more than the monitor's state. If the file fails, the monitor is as before.
        """
        if not self._lock.acquire(timeout=self._lock_seconds):
            raise self._unavailable("it is locked")
        try:
            if self._path is None:
                yield self._in_memory
            else:
                with closing(sqlite3.connect(self._path, timeout=self._lock_seconds, isolation_level=None)) as connection:
                    yield from self._change(connection, monitor)
        except sqlite3.Error as error:
            raise self._unavailable(error) from None
        finally:
            self._lock.release()

    def _change(self, connection: sqlite3.Connection, monitor: DriftMonitor) -> Iterator[dict[str, Any]]:
        """Yield the document in the file, and write it; closing the connection undoes what is not committed."""
        connection.execute("CREATE TABLE IF NOT EXISTS drift (id INTEGER PRIMARY KEY, document TEXT NOT NULL)")
        connection.execute("BEGIN IMMEDIATE")
        found = connection.execute("SELECT document FROM drift WHERE id = 1").fetchone()
        before = found[0] if found else "{}"
        document = self._restore(monitor, before)
        started = monitor.state_dict()
        try:
            yield document
            document["monitor"] = monitor.state_dict()
            if (after := json.dumps(document)) != before:
                connection.execute("INSERT OR REPLACE INTO drift VALUES (1, ?)", (after,))
            connection.execute("COMMIT")
        except sqlite3.Error:
            monitor.load_state_dict(started)
            raise

    def _unavailable(self, reason: object) -> StoreUnavailableError:
        remedy = "let other processes finish with it, free disk space, or give another file"
        return StoreUnavailableError(f"cannot read or write drift state {self._path} ({reason}): {remedy}")

    def _restore(self, monitor: DriftMonitor, text: str) -> dict[str, Any]:
        try:
            document: dict[str, Any] = json.loads(text)
            if (state := document.get("monitor")) is not None:
                monitor.load_state_dict(state)
        except BesnnError as error:
            raise DataError(f"drift state {self._path} does not fit: {error}") from None
        except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
            raise DataError(f"drift state {self._path} is damaged ({error}): start a new one in another file") from None
        return document


class RecentInput(BaseModel):
    """A recent input."""

    p_value: float
    is_ood: bool
    log_martingale: float = Field(description="Natural logarithm of the evidence for drift after this input.")


class DriftReport(BaseModel):
    """The state of the stream of all inputs."""

    steps: int = Field(description="How many inputs were seen.")
    log_martingale: float = Field(description="Natural logarithm of the evidence that the inputs have changed.")
    alarm: bool
    alarm_step: int | None = Field(description="The input at which the evidence first reached the alarm level.")
    alarm_level: float = Field(description="L: the probability of ever raising a false alarm is at most 1/L.")
    ood_rate: float | None = Field(description="Share of unknown inputs among recent ones.")
    ood_rate_interval: tuple[float, float] = Field(description="Exact 95 % confidence interval of that rate.")
    window: int = Field(description="How many recent inputs the rate is measured over.")
    recent: list[RecentInput] = Field(description=f"Up to {RECENT} recent inputs, oldest first.")
    problem: str | None = Field(default=None, description="Why this is not up to date; null if it is.")


class Traffic:
    """Collects predictions for a drift monitor, which compares them with calibration scores; all workers share its state."""

    def __init__(self, threshold: ConformalThreshold, settings: Settings) -> None:
        self._monitor = DriftMonitor.from_calibration(
            threshold.scores, threshold.threshold, alarm_level=settings.drift_alarm_level, window=settings.drift_window
        )
        self._store = DriftStore(settings.drift_state, SERVICE_LOCK_SECONDS)
        self._pending: deque[NDArray[np.float64]] = deque()  # each [3, n]: scores, p-values, whether unknown
        self._latest = self._describe([])
        self.problem: str | None = None
        try:
            self._refresh()  # fails now, and not at the first input, if the state does not fit the model
        except StoreUnavailableError as error:
            self._note(error)

    def record(self, predictions: Predictions) -> None:
        """Record predictions, without waiting for other workers."""
        self._pending.append(np.array([predictions.score, predictions.p_value, predictions.is_ood], np.float64))

    def flush(self) -> None:
        """Bring all recorded predictions to the store."""
        if self._pending:
            self.report()

    def report(self) -> DriftReport:
        """Return the state of the stream, all recorded predictions included.

        If the store fails, the answer is the last known state with the reason, and the predictions are kept for the next call.
        """
        try:
            self._refresh()
        except DataError as error:
            self._note(error)
        return self._latest.model_copy(update={"problem": self.problem})

    def _refresh(self) -> None:
        taken = np.empty((3, 0))
        try:
            with self._store.stream(self._monitor) as document:
                scores, p_values, is_ood = taken = self._take()  # all at once: one update costs as much as hundreds of inputs
                columns = p_values, is_ood.astype(bool), self._monitor.update(scores)
                newest = zip(*(column[-RECENT:].tolist() for column in columns), strict=True)
                document["recent"] = [*document.get("recent", []), *newest][-RECENT:]
                latest = self._describe(document["recent"])
        except DataError:
            kept = np.concatenate([taken, self._take()], axis=1)[:, -KEPT:]
            if kept.size:
                self._pending.appendleft(kept)
            raise
        self._latest, self.problem = latest, None

    def _note(self, error: DataError) -> None:
        if self.problem is None:
            _LOG.error("drift state not written", extra={"fields": {"reason": str(error)}})
        self.problem = str(error)

    def _describe(self, recent: Iterable[tuple[float, bool, float]]) -> DriftReport:
        status = self._monitor.status()
        return DriftReport(
            **asdict(status),
            alarm=status.alarm,
            alarm_level=self._monitor.alarm_level,
            window=self._monitor.window,
            recent=[RecentInput(p_value=p, is_ood=ood, log_martingale=log) for p, ood, log in recent],
        )

    def _take(self) -> NDArray[np.float64]:
        """Take all recorded predictions, `[3, n]`; other threads may record or take meanwhile."""
        taken = [np.empty((3, 0))]
        with suppress(IndexError):  # until there are no more
            while True:
                taken.append(self._pending.popleft())
        return np.concatenate(taken, axis=1)


@dataclass(frozen=True)
class MonitoredFile:
    """The state of a stream after a file, and how many of the file's rows have a score, have none, and are flagged."""

    status: DriftStatus
    inputs: int
    skipped: int
    flagged: int


class Scores(NamedTuple):
    """Some rows of a file, each column `[n]`, and the number of rows skipped because they have no score."""

    score: NDArray[np.float64]
    p_value: NDArray[np.float64]
    is_ood: NDArray[np.bool_]
    skipped: int


def monitor_file(
    path: Path,
    threshold: ConformalThreshold | None = None,
    by_class: MondrianThreshold | None = None,
    *,
    alarm_level: float = 100.0,
    window: int = 1000,
    state: Path | None = None,
) -> MonitoredFile:
    """Run a drift monitor over a `.parquet`, `.csv` or `.jsonl` file of scores, in its order.

    The scores are compared with the calibration scores of `threshold`, that of the detector that made them. Without it, the
    p-values are compared with each other, so only a change within the stream is visible. `by_class` holds the thresholds of its
    predicted classes, if it has any. The file `state` keeps the monitor, so that the next file of scores continues the stream.
    """
    if state is not None and threshold is None:
        raise InputError("a drift state needs the model that made the scores: give the model too")
    monitor = _monitor(path, threshold, alarm_level, window)
    inputs = skipped = flagged = 0
    with DriftStore(state).stream(monitor):
        for rows in read_scores(path):
            if threshold is not None and not _made_by(by_class.thresholds.values() if by_class else [threshold], rows):
                raise DataError(f"{path} was not made by this model with its present calibration: score the inputs again")
            monitor.update(1 - rows.p_value if threshold is None else rows.score)
            inputs += len(rows.score)
            skipped += rows.skipped
            flagged += int(rows.is_ood.sum())
    return MonitoredFile(monitor.status(), inputs, skipped, flagged)


def _made_by(thresholds: Iterable[ConformalThreshold], rows: Scores) -> bool:
    """Whether each p-value is that of one of the thresholds."""
    found = [np.isclose(each.p_values(rows.score), rows.p_value, rtol=0, atol=1e-9) for each in thresholds]
    return bool(np.any(found, axis=0).all())


def _monitor(path: Path, threshold: ConformalThreshold | None, alarm_level: float, window: int) -> DriftMonitor:
    if threshold is not None:
        return DriftMonitor.from_calibration(threshold.scores, threshold.threshold, CELLS, alarm_level, window)
    # Strangeness is 1 − p: an input counts as unknown if it is stranger than all that the file accepts.
    accepted = max((float((1 - rows.p_value[~rows.is_ood]).max(initial=-1)) for rows in read_scores(path)), default=-1.0)
    return DriftMonitor(np.linspace(0, 1, CELLS + 1)[1:-1], accepted, alarm_level=alarm_level, window=window)


def read_scores(path: Path) -> Iterator[Scores]:
    """Yield the rows of a file of scores, some at a time, without those that have no score."""
    reader = _READERS.get(path.suffix.lower())
    if reader is None:
        raise InputError(f"{path} is not a file of scores: give one that besnn score wrote ({', '.join(_READERS)})")
    try:
        for batch in reader(path):
            rows = pa.Table.from_batches([batch]).select(SCHEMA.names).cast(SCHEMA)
            scored = rows.drop_null()
            score, p_value, is_ood = (column.to_numpy() for column in scored.columns)
            yield Scores(score.astype(np.float64), p_value, is_ood.astype(bool), rows.num_rows - scored.num_rows)
    except (pa.ArrowException, OSError, KeyError, TypeError, ValueError) as error:
        if isinstance(error, BesnnError):
            raise
        raise DataError(f"cannot read {path} as scores ({one_line(error)[:200]}): give a file that besnn score wrote") from None


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
