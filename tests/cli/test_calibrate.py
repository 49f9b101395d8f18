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
    assert facts == {"alpha": alpha, "delta": delta, "inputs": 1000, "threshold": expected.threshold}


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
