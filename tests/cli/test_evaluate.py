import json
import re

import numpy as np
import pytest

from besnn.data import load, two_moons
from besnn.detector import Detector
from besnn.evaluation import ood_metrics

OOD_FIGURES = {"auroc", "aupr_in", "aupr_out", "fpr95", "fpr95_ood", "n_in", "n_out"}


@pytest.fixture(scope="module")
def far(tmp_path_factory):
    """Unlabelled points far from the moons."""
    path = tmp_path_factory.mktemp("far") / "far.npz"
    np.savez(path, X=np.random.default_rng(0).normal(30, 1, (200, 2)))
    return path


def test_the_record_has_all_fields_and_the_right_figures(besnn, tmp_path, moons_model, far):
    file = tmp_path / "made" / "record.json"
    outcome = besnn("evaluate", moons_model, "--in", "two-moons:test", "--out", far, "--json", file)
    assert outcome.code == 0
    record = json.loads(file.read_text())
    assert {"method", "in", "members", "seed", "accuracy", "default_score", "scores", "parameters", "seconds"} <= set(record)
    assert {"commit", "versions", "data", "hardware", "date"} <= set(record["provenance"])
    assert (record["method"], record["in"], record["out"]) == ("be-snn", "two-moons", [str(far)])
    assert record["recipe"]["name"] == "two-moons"
    assert set(record["scores"]["tempered-entropy"][str(far)]) == OOD_FIGURES

    detector, test = Detector.load(moons_model), two_moons(1000, seed=1)
    with np.load(far) as arrays:
        points = arrays["X"].astype(np.float32)
    predictions = detector.predict(test.inputs)
    assert record["accuracy"] == np.mean(predictions.indices == test.labels)
    assert record["false_alarm_rate"]["flagged"] == predictions.is_ood.sum()
    assert record["detection_rate"][str(far)]["rate"] == detector.predict(points).is_ood.mean()
    expected = ood_metrics(detector.score(test.inputs), detector.score(points))
    assert record["scores"][record["default_score"]][str(far)] == pytest.approx(expected)
    assert "wrote" in outcome.err


def test_in_words(besnn, moons_model, far):
    outcome = besnn("evaluate", moons_model, "--in", "two-moons", "--out", far)
    assert outcome.code == 0
    assert "of 1,000 known inputs (two-moons)" in outcome.out
    assert "\\x" not in outcome.out  # a space that does not break is printed as a space
    assert f"Of 200 unknown inputs ({far})" in outcome.out
    assert f"against {far}: AUROC" in outcome.out
    assert besnn("evaluate", moons_model, "--in", "two-moons", "--out", far, "-q") == (0, "", "")


@pytest.mark.parametrize("repeat", [True, False], ids=["--out A --out B", "--out A B"])
def test_several_unknown_sets(besnn, moons_model, far, repeat):
    more = ["--out", "two-moons:train"] if repeat else ["two-moons:train"]
    outcome = besnn("evaluate", moons_model, "--in", "two-moons", "--out", far, *more, "--json", "-")
    assert outcome.err == ""
    assert json.loads(outcome.out)["out"] == [str(far), "two-moons:train"]  # the JSON comes alone


def test_report_shows_images_by_their_file_names(besnn, tmp_path, stripes_model, stripe_folder):
    noise = tmp_path / "noise.npz"
    np.savez(noise, images=np.random.default_rng(0).integers(0, 256, (20, 8, 8), dtype=np.uint8))
    report = tmp_path / "pages" / "report.html"
    outcome = besnn("evaluate", stripes_model, "--in", stripe_folder, "--out", noise, "--report", report, "-q")
    assert outcome == (0, "", "")
    page = report.read_text()
    assert "<h1>stripes</h1>" in page
    assert re.search(r"(flat|upright)/\d\d\.png", page)


def test_only_classes_that_the_recipe_chose_count_as_known(besnn, tmp_path, tiny):
    model = tmp_path / "model.safetensors"
    known = "['0', '1', '2']"
    assert besnn("train", "digits", "-o", model, "--epochs=1", "-q", *tiny, f"--set=data.classes={known}").code == 0
    record = json.loads(besnn("evaluate", model, "--in", "digits", "--out", "digits:train", "--json", "-").out)
    assert record["false_alarm_rate"]["n"] == (load("digits:test").labels < 3).sum()
    assert record["detection_rate"]["digits:train"]["n"] == len(load("digits:train"))
