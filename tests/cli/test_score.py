import csv
import json

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

from besnn.data import ImageSpec, decode_image, two_moons
from besnn.detector import Detector

COLUMNS = ["input", "label", "probability", "score", "p_value", "is_ood", "error", "decision", "label_set"]


def read(path):
    """Read a file of scores as dictionaries, with None for missing values."""
    if path.suffix == ".parquet":
        return pq.read_table(path).to_pylist()
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in path.read_text().splitlines()]
    kinds = {"probability": float, "score": float, "p_value": float, "is_ood": {"true": True, "false": False}.get}
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    return [
        {name: kinds.get(name, str)(cell) if cell or name == "error" else None for name, cell in row.items()} for row in rows
    ]


@pytest.fixture
def points(tmp_path, write_csv):
    """A table with a column of classes, one of remarks, and features in another order than the model's."""
    inputs = two_moons(30, seed=3).inputs.astype(float)
    rows = [[f"note {row}", y, "upper" if row % 2 else "", x] for row, (x, y) in enumerate(inputs)]
    return write_csv(tmp_path / "points.csv", ["remark", "x2", "label", "x1"], rows), inputs


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".jsonl"])
def test_one_row_per_input_in_order_equal_to_predict(besnn, tmp_path, moons_model, points, suffix):
    source, inputs = points
    target = tmp_path / f"scores{suffix}"
    outcome = besnn("score", moons_model, source, "-o", target, "--json")
    assert (outcome.code, outcome.err) == (0, "")
    rows = read(target)
    assert list(rows[0]) == COLUMNS
    expected = list(Detector.load(moons_model).predict(inputs.astype(np.float32)))
    assert [row["input"] for row in rows] == [str(number) for number in range(30)]
    for row, prediction in zip(rows, expected, strict=True):
        assert (row["label"], row["is_ood"], row["error"]) == (prediction.label, prediction.is_ood, "")
        values = [row["probability"], row["score"], row["p_value"]]
        np.testing.assert_allclose(values, [prediction.probability, prediction.score, prediction.p_value], rtol=1e-5)
        assert row["decision"] == prediction.decision
        assert row["label_set"] or prediction.is_ood
    facts = {"output": str(target), "inputs": 30, "flagged": sum(p.is_ood for p in expected), "failed": 0}
    assert json.loads(outcome.out) == facts | {"unsure": sum(p.decision == "unsure" for p in expected)}


def test_false_discoveries_can_be_controlled(besnn, tmp_path, moons_model, points):
    source, inputs = points
    outcome = besnn("score", moons_model, source, "-o", tmp_path / "scores.jsonl", "--fdr", "0.5")
    assert outcome.code == 0
    expected = Detector.load(moons_model).predict(inputs.astype(np.float32)).control_fdr(0.5)
    assert [row["decision"] for row in read(tmp_path / "scores.jsonl")] == expected.decision.tolist()
    refused = besnn("score", moons_model, source, "-o", tmp_path / "other.csv", "--fdr", "2")
    assert (refused.code, "--fdr 2 is not a share" in refused.err) == (2, True)


def test_bad_rows_are_reported_in_their_place(besnn, tmp_path, moons_model):
    source, target = tmp_path / "points.csv", tmp_path / "scores.jsonl"
    source.write_text("x1,x2,label\n0,1,upper\n,1,upper\n0.5\nnan,0,lower\n1,much,lower\n1e99,0,lower\n1,-0.5,lower\n")
    outcome = besnn("score", moons_model, source, "-o", target)
    assert outcome.code == 0
    rows = read(target)
    assert [bool(row["error"]) for row in rows] == [False, True, True, True, True, True, False]
    for row in rows:
        if row["error"]:
            assert [row[name] for name in COLUMNS[1:6]] == [None] * 5
        else:
            assert None not in row.values()
    assert "'x1' is empty" in rows[1]["error"]
    assert "instead of 3" in rows[2]["error"]
    assert "'x2' is not a finite number ('much')" in rows[4]["error"]
    assert "5 could not be scored" in outcome.out


def test_a_folder_with_images_and_other_files(besnn, tmp_path, stripes_model, stripe_folder):
    mixed, target = tmp_path / "mixed", tmp_path / "scores.parquet"
    (mixed / "deep").mkdir(parents=True)
    first = next(iter(sorted((stripe_folder / "flat").iterdir())))
    with Image.open(first) as image:
        image.resize((40, 40)).convert("RGB").save(mixed / "deep" / "large.jpg")
    (mixed / "broken.png").write_bytes(first.read_bytes()[:40])
    (mixed / "notes.txt").write_text("no image")
    (mixed / "same.png").write_bytes(first.read_bytes())
    assert besnn("score", stripes_model, mixed, "-o", target, "-q") == (0, "", "")
    rows = {row["input"]: row for row in read(target)}
    assert list(rows) == ["broken.png", "notes.txt", "same.png", "deep/large.jpg"]
    assert "broken.png" in rows["broken.png"]["error"]
    assert "not an image" in rows["notes.txt"]["error"]
    assert rows["deep/large.jpg"]["error"] == ""
    expected = Detector.load(stripes_model).predict(decode_image(first.read_bytes(), ImageSpec(8, channels=1), "")[None])
    assert rows["same.png"]["label"] == expected.labels[0]
    assert rows["same.png"]["score"] == pytest.approx(expected.score[0], rel=1e-4)  # in another batch, so rounded otherwise


def test_built_in_sets_are_scored_by_their_test_split(besnn, tmp_path, moons_model):
    assert besnn("score", moons_model, "two-moons", "-o", tmp_path / "scores.csv", "-q").code == 0
    expected = Detector.load(moons_model).predict(two_moons(1000, seed=1).inputs)
    np.testing.assert_allclose([row["score"] for row in read(tmp_path / "scores.csv")], expected.score, rtol=1e-5)


def test_the_command_fails_if_no_input_can_be_scored(besnn, tmp_path, moons_model, write_csv):
    source = write_csv(tmp_path / "bad.csv", ["x1", "x2"], [["a", 1], [2, "b"]])
    outcome = besnn("score", moons_model, source, "-o", tmp_path / "scores.csv", "-q")
    assert outcome.code == 1
    assert outcome.err.startswith("besnn: none of 2 inputs could be scored; the first: column 'x1'")
    assert [bool(row["error"]) for row in read(tmp_path / "scores.csv")] == [True, True]


def test_a_table_without_rows_gives_a_file_without_rows(besnn, tmp_path, moons_model):
    (tmp_path / "empty.csv").write_text("x1,x2\n")
    for suffix in (".csv", ".parquet", ".jsonl"):
        assert besnn("score", moons_model, tmp_path / "empty.csv", "-o", tmp_path / f"scores{suffix}").code == 0
        assert read(tmp_path / f"scores{suffix}") == []


def test_the_class_column_of_training_is_not_a_feature(besnn, tmp_path, write_csv, tiny):
    rows = [
        [x, y, "up" if label == 0 else "down"]
        for (x, y), label in zip(two_moons(200).inputs, two_moons(200).labels, strict=True)
    ]
    np.savez(tmp_path / "nameless.npz", X=two_moons(200).inputs, y=two_moons(200).labels)
    table = write_csv(tmp_path / "moons.csv", ["x", "y", "kind"], rows)
    model, target = tmp_path / "model.safetensors", tmp_path / "scores.jsonl"
    assert besnn("train", tmp_path / "nameless.npz", "-o", model, "--epochs=1", "-q", *tiny).code == 0
    assert besnn("score", model, table, "-o", target).code == 1  # three columns: which one is the class?
    assert besnn("score", model, table, "-o", target, "--label=kind").code == 0
    assert besnn("train", table, "--label=kind", "-o", model, "--epochs=1", "-q", *tiny).code == 0
    assert besnn("score", model, table, "-o", target).code == 0
    assert {row["label"] for row in read(target)} <= {"up", "down"}


def test_a_page_says_why(besnn, tmp_path, moons_model, write_csv):
    source = write_csv(tmp_path / "points.csv", ["x1", "x2"], [[0.0, 1.0], [90.0, 90.0], [0.5, 0.25]])
    page = tmp_path / "why.html"
    outcome = besnn("score", moons_model, source, "-o", tmp_path / "scores.csv", "--explain", page)
    assert outcome.code == 0, outcome.err
    decisions = [row["decision"] for row in read(tmp_path / "scores.csv")]
    assert page.read_text().count("<h3>") == sum(decision != "known" for decision in decisions)
    refused = besnn("score", moons_model, source, "-o", tmp_path / "scores.csv", "--explain", tmp_path / "why.txt")
    assert (refused.code, "must end in .html" in refused.err) == (2, True)
