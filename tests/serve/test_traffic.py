import sqlite3
from pathlib import Path

import numpy as np
import pytest

from besnn import Detector
from besnn.data import two_moons
from besnn.detection import DriftMonitor
from besnn.errors import DataError
from besnn.serve import Settings
from besnn.serve import drift as drift_store
from besnn.serve.traffic import KEPT, RECENT, Traffic

ORDINARY = two_moons(500, seed=5).inputs
STRANGE = ORDINARY + 20


def make(detector: Detector, **settings: object) -> Traffic:
    assert detector.threshold is not None
    return Traffic(detector.threshold, Settings.model_validate(settings))


def test_the_report_is_that_of_a_monitor_over_all_scores(moons_detector: Detector):
    traffic = make(moons_detector)
    parts = [ORDINARY[:100], ORDINARY[100:103], STRANGE[:30]]
    for part in parts:
        traffic.record(moons_detector.predict(part))
    report = traffic.report()
    threshold = moons_detector.threshold
    assert threshold is not None
    alone = DriftMonitor.from_calibration(threshold.scores, threshold.threshold)
    path = alone.update(moons_detector.predict(np.concatenate(parts)).score.astype(float))
    assert report.steps == 133
    assert report.log_martingale == pytest.approx(alone.status().log_martingale)
    assert (report.alarm_step, report.ood_rate) == (alone.status().alarm_step, alone.status().ood_rate)
    np.testing.assert_allclose([row.log_martingale for row in report.recent], path)
    assert [row.is_ood for row in report.recent[-30:]] == [True] * 30


def test_strange_traffic_raises_the_alarm_and_ordinary_does_not(moons_detector: Detector):
    traffic = make(moons_detector)
    traffic.record(moons_detector.predict(ORDINARY))
    assert not traffic.report().alarm
    traffic.record(moons_detector.predict(STRANGE[:100]))
    report = traffic.report()
    assert report.alarm
    assert report.alarm_step is not None
    assert 500 < report.alarm_step <= 600


def test_only_the_last_inputs_are_kept(moons_detector: Detector):
    traffic = make(moons_detector)
    for _ in range(2):
        traffic.record(moons_detector.predict(ORDINARY))
    expected = moons_detector.predict(ORDINARY).p_value[-RECENT:]
    assert [row.p_value for row in traffic.report().recent] == expected.tolist()


def test_the_stream_goes_on_after_a_restart(moons_detector: Detector, tmp_path: Path):
    state = tmp_path / "drift.sqlite"
    before = make(moons_detector, drift_state=state)
    before.record(moons_detector.predict(ORDINARY[:50]))
    before.close()  # which brings the last of it to the file
    after = make(moons_detector, drift_state=state)
    assert after.report().steps == 50
    after.record(moons_detector.predict(ORDINARY[50:80]))
    unbroken = make(moons_detector)
    unbroken.record(moons_detector.predict(ORDINARY[:80]))
    continued, expected = after.report(), unbroken.report()
    assert (continued.steps, continued.ood_rate) == (80, expected.ood_rate)
    assert continued.log_martingale == pytest.approx(expected.log_martingale, abs=1e-9)
    assert [row.p_value for row in continued.recent] == [row.p_value for row in expected.recent]
    after.close()


def test_what_cannot_be_written_waits_for_the_next_time(
    moons_detector: Detector, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(drift_store, "PATIENCE", 0.01)
    traffic = make(moons_detector, drift_state=tmp_path / "drift.sqlite")
    reader = sqlite3.connect(tmp_path / "drift.sqlite", isolation_level=None)
    traffic.record(moons_detector.predict(ORDINARY[:50]))
    for begin in ("BEGIN IMMEDIATE", "BEGIN"):  # the store cannot be opened; it can, but not be written
        reader.execute(begin)
        reader.execute("SELECT * FROM drift").fetchall()
        with pytest.raises(DataError, match="locked"):
            traffic.report()
        reader.execute("ROLLBACK")
        traffic.record(moons_detector.predict(ORDINARY[50:55]))
    unbroken = make(moons_detector)
    for rows in (ORDINARY[:50], ORDINARY[50:55], ORDINARY[50:55]):
        unbroken.record(moons_detector.predict(rows))
    late, expected = traffic.report(), unbroken.report()
    assert late.steps == 60
    assert [row.p_value for row in late.recent] == [row.p_value for row in expected.recent]
    assert late.log_martingale == pytest.approx(expected.log_martingale, abs=1e-9)
    reader.close()
    traffic.close()


def test_what_waits_is_bounded(moons_detector: Detector, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(drift_store, "PATIENCE", 0.01)
    traffic = make(moons_detector, drift_state=tmp_path / "drift.sqlite")
    other = sqlite3.connect(tmp_path / "drift.sqlite", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    predictions = moons_detector.predict(ORDINARY)
    for _ in range(KEPT // len(ORDINARY) + 2):
        traffic.record(predictions)
        with pytest.raises(DataError):
            traffic.flush()
    other.close()
    report = traffic.report()
    assert report.steps == KEPT
    assert [row.p_value for row in report.recent] == predictions.p_value[-RECENT:].tolist()  # the last ones
    traffic.close()


def test_workers_share_one_stream(moons_detector: Detector, tmp_path: Path):
    workers = [make(moons_detector, drift_state=tmp_path / "drift.sqlite") for _ in range(3)]
    for worker, rows in zip(workers, np.array_split(ORDINARY, 3), strict=True):
        worker.record(moons_detector.predict(rows))
        worker.flush()
    assert {worker.report().steps for worker in workers} == {500}
    for worker in workers:
        worker.close()


def test_the_state_of_another_model_is_refused(moons_detector: Detector, digits_detector: Detector, tmp_path: Path):
    make(moons_detector, drift_state=tmp_path / "drift.sqlite").close()
    with pytest.raises(DataError, match=r"drift\.sqlite does not fit"):
        make(digits_detector, drift_state=tmp_path / "drift.sqlite")
