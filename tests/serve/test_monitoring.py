import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from besnn.batch import SCHEMA
from besnn.detection import ConformalThreshold, DriftMonitor
from besnn.errors import DataError, InputError
from besnn.serve.monitoring import monitor_file
from besnn.writers import table_writer

RNG = np.random.default_rng(0)
THRESHOLD = ConformalThreshold(RNG.normal(size=500).astype(np.float32), alpha=0.1)
ORDINARY = RNG.normal(size=800).astype(np.float32)
STRANGE = RNG.normal(loc=2, size=200).astype(np.float32)


def write(path: Path, scores: np.ndarray, failed: int = 0) -> Path:
    """A file as `besnn score` writes it, with rows that could not be scored in between."""
    n = len(scores)
    p_values = THRESHOLD.p_values(scores.astype(np.float64))
    columns = [np.full(n, "a"), np.full(n, 0.5, np.float32), scores, p_values, THRESHOLD.is_ood(scores)]
    rows = [[str(row), *(column[row].item() for column in columns), ""] for row in range(n)]
    for place in range(failed):
        rows.insert(3 * place, ["bad", None, None, None, None, None, "unreadable"])
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


@pytest.mark.parametrize("suffix", ["parquet", "csv", "jsonl"])
def test_without_a_model_a_change_within_the_stream_is_seen(tmp_path: Path, suffix: str):
    changing = monitor_file(write(tmp_path / f"changing.{suffix}", np.concatenate([ORDINARY, STRANGE])), window=200)
    assert changing.status.alarm_step is not None
    assert changing.status.alarm_step > 800
    assert changing.status.ood_rate == np.mean(THRESHOLD.is_ood(STRANGE))
    same = monitor_file(write(tmp_path / f"same.{suffix}", ORDINARY))
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


def test_all_flagged_and_none_at_all(tmp_path: Path):
    watched = monitor_file(write(tmp_path / "strange.csv", np.full(20, 9.0, np.float32)))
    assert watched.status.ood_rate == 1
    empty = monitor_file(write(tmp_path / "empty.parquet", ORDINARY[:0]))
    assert (empty.inputs, empty.status.ood_rate) == (0, None)


def test_scores_of_another_model_are_refused(tmp_path: Path):
    other = ConformalThreshold(RNG.normal(size=300), alpha=0.1)
    with pytest.raises(DataError, match="was not made by this model"):
        monitor_file(write(tmp_path / "scores.parquet", ORDINARY), other)


def test_what_is_no_file_of_scores_is_named(tmp_path: Path):
    with pytest.raises(InputError, match=r"\.parquet, \.csv, \.jsonl"):
        monitor_file(tmp_path / "scores.txt")
    with pytest.raises(InputError, match="needs the model"):
        monitor_file(tmp_path / "scores.csv", state=tmp_path / "state")
    contents = {
        "table.csv": "a,b\n1,2\n",
        "text.csv": "score,p_value,is_ood\nlow,0.5,false\n",
        "broken.jsonl": '{"score": 1, "p_value"',
        "list.jsonl": "[1]\n",
        "junk.parquet": "junk",
    }
    for name, content in contents.items():
        (tmp_path / name).write_text(content)
        with pytest.raises(DataError, match=rf"{name} cannot be read as scores"):
            monitor_file(tmp_path / name)
    pa.parquet.write_table(pa.table({"x": [1]}), tmp_path / "other.parquet")
    with pytest.raises(DataError, match=r"other\.parquet cannot be read as scores"):
        monitor_file(tmp_path / "other.parquet")


def test_a_failure_midway_leaves_the_state_as_it_was(tmp_path: Path):
    state = tmp_path / "state.sqlite"
    monitor_file(write(tmp_path / "good.jsonl", ORDINARY[:50]), THRESHOLD, state=state)
    bad = write(tmp_path / "bad.jsonl", ORDINARY[:50])
    bad.write_text(bad.read_text() + json.dumps({"score": "x", "p_value": 1, "is_ood": False}))
    with pytest.raises(DataError):
        monitor_file(bad, THRESHOLD, state=state)
    assert monitor_file(write(tmp_path / "more.jsonl", ORDINARY[:5]), THRESHOLD, state=state).status.steps == 55
