import json
import shutil

import numpy as np
import pytest

from besnn.data import two_moons
from besnn.detection import ConformalThreshold
from besnn.detector import Detector


@pytest.fixture
def model(tmp_path, uncalibrated_model):
    """A copy to write to."""
    return shutil.copy(uncalibrated_model, tmp_path / "model.safetensors")


@pytest.mark.parametrize(
    ("options", "alpha", "delta"), [([], 0.05, None), (["--alpha=0.2", "--delta=0.1", "--device=cpu"], 0.2, 0.1)]
)
def test_threshold_is_the_conformal_one_of_the_test_split(besnn, model, options, alpha, delta):
    outcome = besnn("calibrate", model, "two-moons", *options, "--json")
    assert (outcome.code, outcome.err) == (0, "")
    detector = Detector.load(model)
    expected = ConformalThreshold(detector.score(two_moons(1000, seed=1).inputs), alpha, delta)
    assert detector.threshold.threshold == expected.threshold
    facts = json.loads(outcome.out)["calibration"]
    labels = facts.pop("labels")
    assert facts == {"alpha": alpha, "delta": delta, "inputs": 1000, "threshold": expected.threshold, "per_class": False}
    assert (labels["alpha"], labels["form"], labels["max_error"]) == (0.05, "least-ambiguous", None)


def test_every_promise_is_kept_in_the_file_and_told(besnn, model):
    options = "--per-class", "--label-alpha=0.1", "--label-sets=adaptive", "--max-error=0.2", "--delta=0.2"
    outcome = besnn("calibrate", model, "two-moons", *options)
    assert outcome.code == 0, outcome.err
    assert "false alarms on at most 5 % of known inputs of each predicted class with probability 0.8" in outcome.out
    assert "holds its class with probability 0.9 or more (adaptive" in outcome.out
    assert "of the inputs called known, at most 20 % have a wrong label, with probability 0.8" in outcome.out
    decision = Detector.load(model).decision
    assert len(decision.by_class.thresholds) == 2
    assert (decision.labels.alpha, decision.labels.max_error, decision.labels.delta) == (0.1, 0.2, 0.2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--label-sets=big"], "'big' is not one of 'least-ambiguous', 'adaptive'"),
        (["--max-error=0.00001"], "max_error=1e-05 cannot be shown"),
        (["--label-alpha=2"], "label_alpha=2.0: pass a number between 0 and 1"),
    ],
)
def test_promises_that_cannot_be_made_are_refused(besnn, model, options, message):
    outcome = besnn("calibrate", model, "two-moons", *options)
    assert outcome.code == 2
    assert message in outcome.err


def test_into_another_file(besnn, tmp_path, model):
    target = tmp_path / "calibrated" / "model.safetensors"
    outcome = besnn("calibrate", model, "two-moons", "-o", target)
    assert f"{target}: false alarms on at most 5 % of known inputs" in outcome.out
    assert Detector.load(model).threshold is None
    assert Detector.load(target).threshold is not None
    assert besnn("calibrate", target, "two-moons", "--delta=0.1", "-q") == (0, "", "")
    assert "with probability 0.9" in besnn("inspect", target).out


def test_data_needs_no_labels_and_is_recorded(besnn, tmp_path, model, write_csv):
    points = two_moons(60, seed=2).inputs.astype(float)
    table = write_csv(tmp_path / "points.csv", ["x2", "x1"], points[:, ::-1])
    assert besnn("calibrate", model, table).code == 0
    detector = Detector.load(model)
    np.testing.assert_allclose(np.sort(detector.score(points.astype(np.float32))), detector.threshold.scores, rtol=1e-5)
    assert detector.provenance["calibration_data"]["name"] == str(table)
