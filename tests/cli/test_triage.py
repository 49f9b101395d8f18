"""From a folder of groups to a detector that knows a new class, by commands alone."""

import json

import numpy as np
import pytest
import yaml

from besnn import Detector
from besnn.data import two_moons


@pytest.fixture(scope="module")
def inbox(tmp_path_factory, write_csv):
    known = two_moons(200, seed=5).inputs
    new = np.random.default_rng(0).normal((9, 9), 0.2, (80, 2))
    path = tmp_path_factory.mktemp("inbox") / "inbox.csv"
    return write_csv(path, ["x1", "x2"], np.concatenate([known, new]).astype(float).tolist())


@pytest.fixture(scope="module")
def training(tmp_path_factory, write_csv):
    moons = two_moons(600, seed=6)
    rows = [[*row, moons.class_names[label]] for row, label in zip(moons.inputs.tolist(), moons.labels, strict=True)]
    return write_csv(tmp_path_factory.mktemp("data") / "moons.csv", ["x1", "x2", "label"], rows)


def test_group_name_apply_and_go_on(besnn, tmp_path, moons_model, inbox, training):
    folder, model = tmp_path / "triage", tmp_path / "new.safetensors"
    grouped = besnn("triage", moons_model, inbox, "-o", folder)
    assert grouped.code == 0, grouped.err
    assert "group-1:" in grouped.out
    assert (folder / "index.html").exists()
    names = yaml.safe_load((folder / "groups.yaml").read_text())
    names["groups"]["group-1"]["name"] = "far"
    (folder / "groups.yaml").write_text(yaml.safe_dump(names))
    applied = besnn("triage", moons_model, inbox, "-o", folder, "--apply", "--data", training, "--json")
    assert applied.code == 0, applied.err
    facts = json.loads(applied.out)
    assert facts["new_classes"] == ["far"]
    trained = besnn("train", facts["training"], "--from", moons_model, "-o", model, "--epochs", "40", "--quiet")
    assert trained.code == 0, trained.err
    detector = Detector.load(model)
    assert detector.class_names == ("upper", "lower", "far")
    assert (detector.predict(np.full((5, 2), 9, np.float32)).labels == "far").all()
    again = besnn("calibrate", model, facts["calibration"])
    assert again.code == 0, again.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--apply"], "run besnn triage without --apply first"),
        (["--smallest", "1"], "--smallest"),
        (["--apply", "--data", "nowhere.csv"], "nowhere.csv"),
    ],
)
def test_wrong_use_is_explained(besnn, tmp_path, moons_model, inbox, training, words, message):
    data = [] if "--data" in words or "--apply" not in words else ["--data", training]
    outcome = besnn("triage", moons_model, inbox, "-o", tmp_path / "empty", *words, *data)
    assert outcome.code == 2
    assert message in outcome.err


def test_a_start_with_another_method_is_refused(besnn, tmp_path, moons_model, training):
    outcome = besnn("train", training, "--from", moons_model, "--method", "softmax", "-o", tmp_path / "x.safetensors")
    assert outcome.code == 2
    assert "--method softmax would need another network" in outcome.err
