from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from besnn.batch import SCHEMA, Tally, open_inputs, score_batches, score_file, table_writer
from besnn.data import Batch, Dataset
from besnn.detector import Detector
from besnn.errors import DataError, InputError
from besnn.training.fit import fit_detector


@pytest.fixture(scope="module")
def detector(tiny_recipe, moons) -> Detector:
    return fit_detector(tiny_recipe(), moons).detector


def batch(inputs: np.ndarray, errors: list[str]) -> Batch:
    return Batch([f"row {number}" for number in range(len(inputs))], inputs, errors)


def test_rows_with_errors_keep_their_places(detector, moons):
    errors = ["", "torn", "", "", "blank"]
    [rows] = score_batches(detector, [batch(moons.inputs[:5], errors)])
    good = detector.predict(moons.inputs[[0, 2, 3]])
    assert rows.schema == SCHEMA
    assert rows["error"].to_pylist() == errors
    assert rows["label"].to_pylist() == [good.labels[0], None, good.labels[1], good.labels[2], None]
    assert rows["is_ood"].to_pylist() == [good.is_ood[0], None, good.is_ood[1], good.is_ood[2], None]
    np.testing.assert_array_equal(rows["score"].drop_null().to_numpy(), good.score)
    np.testing.assert_array_equal(rows["p_value"].drop_null().to_numpy(), good.p_value)
    np.testing.assert_array_equal(rows["probability"].drop_null().to_numpy(), good.probabilities.max(axis=1))


def test_a_batch_in_which_every_row_has_an_error(detector, moons):
    [rows] = score_batches(detector, [batch(moons.inputs[:2], ["a", "b"])])
    assert rows["score"].null_count == 2
    tally = Tally()
    tally.add(rows)
    assert tally == Tally(inputs=2, flagged=0, failed=2, first_error="a")


def test_batches_are_read_one_at_a_time(detector, moons):
    batches = iter([batch(moons.inputs[:3], [""] * 3)] * 5)
    scored = score_batches(detector, batches)
    next(scored)
    next(scored)
    assert len(list(batches)) == 3


def test_tally_and_progress_cover_all_batches(detector, moons, tmp_path):
    far = np.concatenate([moons.inputs, moons.inputs + 1e3])
    np.savez(tmp_path / "points.npz", X=np.tile(far, (40, 1)))
    seen: list[int] = []
    tally = score_file(detector, str(tmp_path / "points.npz"), tmp_path / "scores.parquet", progress=seen.append)
    expected = detector.predict(far)
    flagged, unsure = (int((expected.decision == name).sum()) * 40 for name in ("unknown", "unsure"))
    assert tally == Tally(inputs=len(far) * 40, flagged=flagged, unsure=unsure)
    assert sum(seen) == tally.inputs
    assert len(seen) > 1


def test_false_discoveries_are_controlled_over_all_batches(tiny_recipe, moons, tmp_path, monkeypatch):
    detector = fit_detector(tiny_recipe("score.name=class-gaussian"), moons).detector.calibrate(
        moons.inputs, labels=moons.labels
    )
    monkeypatch.setattr("besnn.batch.TABLE_ROWS", 64)
    inputs = np.concatenate([moons.inputs, moons.inputs[:40] + 30])
    np.savez(tmp_path / "points.npz", X=inputs)
    tally = score_file(detector, str(tmp_path / "points.npz"), tmp_path / "scores.parquet", fdr=0.1)
    rows = pa.parquet.read_table(tmp_path / "scores.parquet")
    expected = detector.predict(inputs).control_fdr(0.1)
    assert rows["is_ood"].to_pylist() == expected.is_ood.tolist()
    assert rows["decision"].to_pylist() == expected.decision.tolist()
    sets = ["|".join(names) for names in expected.named_label_sets(detector.class_names)]
    assert rows["label_set"].to_pylist() == sets
    assert tally.flagged == int(expected.is_ood.sum()) > 0


def test_a_run_that_fails_leaves_the_old_file_and_no_other(detector, tmp_path):
    source, target = tmp_path / "points.npz", tmp_path / "scores.csv"
    np.savez(source, X=np.zeros((20_000, 2), np.float32))
    content = bytearray(source.read_bytes())
    content[100_000] ^= 1  # only the checksum reveals it, after the last row
    source.write_bytes(content)
    target.write_text("old")
    seen: list[int] = []
    with pytest.raises(DataError, match="cannot be read"):
        score_file(detector, str(source), target, progress=seen.append)
    assert seen
    assert target.read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["points.npz", "scores.csv"]


@pytest.mark.parametrize(
    ("suffix", "expected"),
    [(".csv", '"input","error"\n"a","é, b"\n'), (".jsonl", '{"input": "a", "error": "é, b"}\n'), (".parquet", None)],
)
def test_a_table_appears_when_it_is_whole(tmp_path, suffix, expected):
    target = tmp_path / f"rows{suffix}"
    rows = pa.RecordBatch.from_pydict({"input": ["a"], "error": ["é, b"]})
    with table_writer(target, rows.schema) as write:
        write(rows)
        assert not target.exists()
    if expected is None:
        assert pa.parquet.read_table(target).to_batches() == [rows]
    else:
        assert target.read_text(encoding="utf-8") == expected


def test_an_unknown_extension_is_refused():
    with pytest.raises(InputError, match=r"end its name in \.parquet, \.csv, \.jsonl"):
        table_writer(Path("scores.xlsx"), SCHEMA).__enter__()


def test_inputs_are_converted_to_what_the_detector_takes(tiny_recipe, stripes: Dataset, stripe_folder):
    recipe = tiny_recipe("data.source=digits", "calibration.alpha=0.2", "backbone.hidden=[4]")
    detector = fit_detector(recipe, stripes).detector
    batches = list(open_inputs(detector, str(stripe_folder)))
    assert sum(len(each.ids) for each in batches) == len(stripes)
    assert {each.inputs.shape[1:] for each in batches} == {(1, 8, 8)}
