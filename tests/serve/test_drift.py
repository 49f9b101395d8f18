"""The drift monitor's store, the service's traffic, and files of scores."""

import contextlib
import json
import sqlite3
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from besnn import Detector
from besnn.batch import SCHEMA, table_writer
from besnn.data import two_moons
from besnn.detection import ConformalThreshold, DriftMonitor, MondrianThreshold
from besnn.errors import DataError, InputError
from besnn.serve import Settings, drift
from besnn.serve.drift import KEPT, RECENT, DriftStore, Traffic, monitor_file

POINTS = two_moons(500, seed=5).inputs
FAR_POINTS = POINTS + 20

INCREMENT = """
import sqlite3, sys, json
connection = sqlite3.connect(sys.argv[1], timeout=30, isolation_level=None)
for _ in range(20):
    connection.execute("BEGIN IMMEDIATE")
    document = json.loads(connection.execute("SELECT document FROM drift").fetchone()[0])
    document["count"] += 1
    connection.execute("UPDATE drift SET document = ?", (json.dumps(document),))
    connection.execute("COMMIT")
"""


def new_monitor() -> DriftMonitor:
    return DriftMonitor([0.5], ood_threshold=0.9)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "drift.sqlite"


@pytest.fixture
def store(path: Path) -> DriftStore:
    made = DriftStore(path)
    with made.stream(new_monitor()):  # makes the file
        pass
    return made


def test_processes_change_a_store_in_turn(store: DriftStore, path: Path):
    with store.stream(new_monitor()) as document:
        document["count"] = 0
    others = [subprocess.Popen([sys.executable, "-c", INCREMENT, str(path)]) for _ in range(2)]
    for _ in range(20):
        with store.stream(new_monitor()) as document:
            document["count"] += 1
    assert [other.wait(60) for other in others] == [0, 0]
    with store.stream(new_monitor()) as document:
        assert document["count"] == 60


def test_a_change_that_fails_is_undone(store: DriftStore):
    with store.stream(new_monitor()) as document:
        document["a"] = 1
    with pytest.raises(ZeroDivisionError), store.stream(new_monitor()) as document:
        document["a"] = 1 / 0
    with pytest.raises(TypeError), store.stream(new_monitor()) as document:
        document["a"] = {1, 2}  # not JSON
    with store.stream(new_monitor()) as document:
        assert document["a"] == 1


def test_another_file_is_refused_and_left_alone(tmp_path: Path):
    path, content = tmp_path / "notes.txt", b"not a database at all, but long enough to tell" * 50
    path.write_bytes(content)
    for other, reason in ((path, "not a database"), (tmp_path / "nowhere" / "drift.sqlite", "unable to open")):
        message = rf"cannot read or write drift state .*{other.name} \(.*{reason}"
        with pytest.raises(DataError, match=message), DriftStore(other).stream(new_monitor()):
            pytest.fail("the stream was continued")
    assert path.read_bytes() == content


def test_a_store_that_another_process_holds_is_named(path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(drift, "LOCK_SECONDS", 0.01)
    locked = r"cannot read or write drift state .*drift\.sqlite \(database is locked\): let other processes finish"
    store = DriftStore(path)
    with store.stream(new_monitor()):
        pass
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(DataError, match=locked), store.stream(new_monitor()):
            pytest.fail("the stream was continued")
        other.execute("ROLLBACK")
        other.execute("BEGIN")
        other.execute("SELECT * FROM drift").fetchall()  # a reader keeps others from writing, but not from trying
        with pytest.raises(DataError, match=locked), store.stream(new_monitor()) as document:
            document["a"] = 1
        other.execute("ROLLBACK")
        with store.stream(new_monitor()) as document:
            assert "a" not in document


DAMAGED_STATE = json.dumps({"monitor": new_monitor().state_dict() | {"counts": "many"}})


@pytest.mark.parametrize("text", ["{", "", "[]", "null", "[" * 100_000, 7, b"\xff", DAMAGED_STATE])
def test_a_damaged_document_is_named(store: DriftStore, path: Path, text: object):
    with contextlib.closing(sqlite3.connect(path)) as other, other:
        other.execute("UPDATE drift SET document = ?", (text,))
    damaged = r"drift\.sqlite is damaged \(.*\): start a new one in another file$"
    with pytest.raises(DataError, match=damaged), store.stream(new_monitor()):
        pytest.fail("the stream was continued")


def make(detector: Detector, **settings: object) -> Traffic:
    assert detector.threshold is not None
    return Traffic(detector.threshold, Settings.model_validate(settings))


def test_the_report_is_that_of_a_monitor_over_all_scores(moons_detector: Detector):
    traffic = make(moons_detector)
    parts = [POINTS[:100], POINTS[100:103], FAR_POINTS[:30]]
    for part in parts:
        traffic.record(moons_detector.predict(part))
    report = traffic.report()
    threshold = moons_detector.threshold
    assert threshold is not None
    alone = DriftMonitor.from_calibration(threshold.scores, threshold.threshold)
    path = alone.update(moons_detector.predict(np.concatenate(parts)).score.astype(float))
    status = alone.status()
    assert (report.steps, report.alarm, report.alarm_step, report.ood_rate) == (133, True, status.alarm_step, status.ood_rate)
    assert report.log_martingale == pytest.approx(status.log_martingale)
    np.testing.assert_allclose([row.log_martingale for row in report.recent], path)
    assert [row.is_ood for row in report.recent[-30:]] == [True] * 30


def test_the_stream_goes_on_after_a_restart(moons_detector: Detector, tmp_path: Path):
    state = tmp_path / "drift.sqlite"
    before = make(moons_detector, drift_state=state)
    before.record(moons_detector.predict(POINTS[:50]))
    before.flush()
    after = make(moons_detector, drift_state=state)
    assert after.report().steps == 50
    after.record(moons_detector.predict(POINTS[50:80]))
    unbroken = make(moons_detector)
    unbroken.record(moons_detector.predict(POINTS[:80]))
    continued, expected = after.report(), unbroken.report()
    assert (continued.steps, continued.ood_rate) == (80, expected.ood_rate)
    assert continued.log_martingale == pytest.approx(expected.log_martingale, abs=1e-9)
    assert [row.p_value for row in continued.recent] == [row.p_value for row in expected.recent]


def test_predictions_that_cannot_be_written_are_kept(moons_detector: Detector, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(drift, "SERVICE_LOCK_SECONDS", 0.01)
    traffic = make(moons_detector, drift_state=tmp_path / "drift.sqlite")
    reader = sqlite3.connect(tmp_path / "drift.sqlite", isolation_level=None)
    traffic.record(moons_detector.predict(POINTS[:50]))
    for begin in ("BEGIN IMMEDIATE", "BEGIN"):  # the store cannot be opened; it can, but not be written
        reader.execute(begin)
        reader.execute("SELECT * FROM drift").fetchall()
        assert "locked" in (traffic.report().problem or "")
        assert traffic.problem is not None
        reader.execute("ROLLBACK")
        traffic.record(moons_detector.predict(POINTS[50:55]))
    unbroken = make(moons_detector)
    for rows in (POINTS[:50], POINTS[50:55], POINTS[50:55]):
        unbroken.record(moons_detector.predict(rows))
    late, expected = traffic.report(), unbroken.report()
    assert late.steps == 60
    assert [row.p_value for row in late.recent] == [row.p_value for row in expected.recent]
    assert late.log_martingale == pytest.approx(expected.log_martingale, abs=1e-9)
    reader.close()


def test_kept_predictions_are_bounded(moons_detector: Detector, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(drift, "SERVICE_LOCK_SECONDS", 0.01)
    traffic = make(moons_detector, drift_state=tmp_path / "drift.sqlite")
    other = sqlite3.connect(tmp_path / "drift.sqlite", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    predictions = moons_detector.predict(POINTS)
    for _ in range(KEPT // len(POINTS) + 2):
        traffic.record(predictions)
        traffic.flush()
    other.close()
    report = traffic.report()
    assert report.steps == KEPT
    assert [row.p_value for row in report.recent] == predictions.p_value[-RECENT:].tolist()  # the last ones


def test_a_store_that_vanishes_is_reported_and_comes_back(moons_detector: Detector, tmp_path: Path):
    folder, away = tmp_path / "disk", tmp_path / "away"
    folder.mkdir()
    traffic = make(moons_detector, drift_state=folder / "drift.sqlite")
    traffic.record(moons_detector.predict(POINTS[:50]))
    assert traffic.report().problem is None
    folder.rename(away)
    traffic.record(moons_detector.predict(POINTS[50:80]))
    for _ in range(2):
        stale = traffic.report()
        assert (stale.steps, len(stale.recent)) == (50, 50)
        assert "cannot read or write drift state" in (stale.problem or "")
    away.rename(folder)
    report = traffic.report()
    assert (report.steps, report.problem, traffic.problem) == (80, None, None)
    (folder / "drift.sqlite").unlink()  # for good: the stream goes on from memory
    traffic.record(moons_detector.predict(POINTS[80:90]))
    traffic.report()
    assert traffic.report().steps == 90
    again = make(moons_detector, drift_state=folder / "drift.sqlite")
    assert again.report().steps == 90


def test_a_store_without_room_is_reported_and_comes_back(
    moons_detector: Detector, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    traffic = make(moons_detector, drift_state=tmp_path / "drift.sqlite")
    connect = sqlite3.connect

    def connect_to_a_small_disk(*arguments: object, **options: object) -> sqlite3.Connection:
        connection = connect(*arguments, **options)
        connection.execute("PRAGMA max_page_count = 1")
        return connection

    monkeypatch.setattr(sqlite3, "connect", connect_to_a_small_disk)
    for rows in np.array_split(POINTS, 2):
        traffic.record(moons_detector.predict(rows))
    assert "disk is full" in (traffic.report().problem or "")
    monkeypatch.undo()
    assert traffic.report().steps == 500


def test_workers_share_one_stream_but_not_those_of_another_model(
    moons_detector: Detector, digits_detector: Detector, tmp_path: Path
):
    workers = [make(moons_detector, drift_state=tmp_path / "drift.sqlite") for _ in range(3)]
    for worker, rows in zip(workers, np.array_split(POINTS, 3), strict=True):
        worker.record(moons_detector.predict(rows))
        worker.flush()
    assert {worker.report().steps for worker in workers} == {500}
    with pytest.raises(DataError, match=r"drift\.sqlite does not fit"):
        make(digits_detector, drift_state=tmp_path / "drift.sqlite")


RNG = np.random.default_rng(0)
THRESHOLD = ConformalThreshold(RNG.normal(size=500).astype(np.float32), alpha=0.1)
ORDINARY = RNG.normal(size=800).astype(np.float32)
STRANGE = RNG.normal(loc=2, size=200).astype(np.float32)


def write(path: Path, scores: np.ndarray, failed: int = 0) -> Path:
    """A file as `besnn score` writes it, with rows that could not be scored in between."""
    n = len(scores)
    p_values = THRESHOLD.p_values(scores.astype(np.float64))
    columns = [np.full(n, "a"), np.full(n, 0.5, np.float32), scores, p_values, THRESHOLD.is_ood(scores)]
    rows = [[str(row), *(column[row].item() for column in columns), "", "known", "a"] for row in range(n)]
    for place in range(failed):
        rows.insert(3 * place, ["bad", None, None, None, None, None, "unreadable", None, None])
    with table_writer(path, SCHEMA) as write_rows:
        write_rows(pa.RecordBatch.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in rows], SCHEMA))
    return path


@pytest.mark.parametrize("suffix", ["parquet", "csv", "jsonl"])
def test_against_the_calibration_it_is_the_monitor_over_the_scores(tmp_path: Path, suffix: str):
    scores = np.concatenate([ORDINARY, STRANGE])
    watched = monitor_file(write(tmp_path / f"scores.{suffix}", scores, failed=7), THRESHOLD)
    expected = DriftMonitor.from_calibration(THRESHOLD.scores, THRESHOLD.threshold)
    expected.update(scores.astype(np.float64))
    assert watched.status.log_martingale == pytest.approx(expected.status().log_martingale)
    assert watched.status.alarm_step == expected.status().alarm_step
    assert watched.status.alarm_step is not None
    assert watched.status.alarm_step > 800
    assert watched.status.ood_rate == expected.status().ood_rate
    flagged = int(np.sum(THRESHOLD.is_ood(scores)))
    assert (watched.inputs, watched.skipped, watched.flagged) == (1000, 7, flagged)


def test_without_a_model_a_change_within_the_stream_is_seen(tmp_path: Path):
    changing = monitor_file(write(tmp_path / "changing.parquet", np.concatenate([ORDINARY, STRANGE])), window=200)
    assert changing.status.alarm_step is not None
    assert changing.status.alarm_step > 800
    assert changing.status.ood_rate == np.mean(THRESHOLD.is_ood(STRANGE))
    same = monitor_file(write(tmp_path / "same.parquet", ORDINARY))
    assert not same.status.alarm
    assert same.status.ood_rate == np.mean(THRESHOLD.is_ood(ORDINARY))


def test_the_stream_goes_on_from_file_to_file(tmp_path: Path):
    state = tmp_path / "state.sqlite"
    scores = np.concatenate([ORDINARY[:300], STRANGE])
    for place, part in enumerate(np.array_split(scores, 3)):
        last = monitor_file(write(tmp_path / f"{place}.parquet", part), THRESHOLD, state=state)
    whole = monitor_file(write(tmp_path / "whole.parquet", scores), THRESHOLD)
    assert last.status.steps == whole.status.steps == 500
    assert last.status.log_martingale == pytest.approx(whole.status.log_martingale)
    assert last.status.alarm_step == whole.status.alarm_step


def test_scores_of_another_model_are_refused_but_not_those_of_its_classes(tmp_path: Path):
    path, classes = write(tmp_path / "scores.parquet", ORDINARY), [0] * 500 + [1] * 500
    by_class = MondrianThreshold(np.concatenate([THRESHOLD.scores, THRESHOLD.scores + 9]), classes)
    assert monitor_file(path, THRESHOLD, by_class).inputs == len(ORDINARY)
    for other in (
        (ConformalThreshold(RNG.normal(size=300), alpha=0.1),),
        (THRESHOLD, MondrianThreshold(THRESHOLD.scores + 9, classes[:500])),
    ):
        with pytest.raises(DataError, match="was not made by this model"):
            monitor_file(path, *other)


def test_all_flagged_and_none_at_all(tmp_path: Path):
    watched = monitor_file(write(tmp_path / "strange.csv", np.full(20, 9.0, np.float32)))
    assert watched.status.ood_rate == 1
    empty = monitor_file(write(tmp_path / "empty.parquet", ORDINARY[:0]))
    assert (empty.inputs, empty.status.ood_rate) == (0, None)


def test_what_is_no_file_of_scores_is_named(tmp_path: Path):
    with pytest.raises(InputError, match=r"\.parquet, \.csv, \.jsonl"):
        monitor_file(tmp_path / "scores.txt")
    with pytest.raises(InputError, match="needs the model"):
        monitor_file(tmp_path / "scores.csv", state=tmp_path / "state")
    (tmp_path / "table.csv").write_text("a,b\n1,2\n")
    (tmp_path / "text.csv").write_text("score,p_value,is_ood\nlow,0.5,false\n")
    (tmp_path / "broken.jsonl").write_text('{"score": 1, "p_value"')
    (tmp_path / "list.jsonl").write_text("[1]\n")
    (tmp_path / "junk.parquet").write_text("junk")
    pa.parquet.write_table(pa.table({"x": [1]}), tmp_path / "other.parquet")
    for path in sorted(tmp_path.iterdir()):
        with pytest.raises(DataError, match=rf"cannot read {path} as scores"):
            monitor_file(path)


def test_a_failure_midway_leaves_the_state_as_it_was(tmp_path: Path):
    state = tmp_path / "state.sqlite"
    monitor_file(write(tmp_path / "good.jsonl", ORDINARY[:50]), THRESHOLD, state=state)
    bad = write(tmp_path / "bad.jsonl", ORDINARY[:50])
    bad.write_text(bad.read_text() + json.dumps({"score": "x", "p_value": 1, "is_ood": False}))
    with pytest.raises(DataError):
        monitor_file(bad, THRESHOLD, state=state)
    assert monitor_file(write(tmp_path / "more.jsonl", ORDINARY[:5]), THRESHOLD, state=state).status.steps == 55
