"""`besnn export`: the file is there, described, and refused for a model that cannot decide."""

import json
import subprocess
import sys

import pytest


@pytest.mark.parametrize(("form", "suffix"), [("onnx", ".onnx"), ("torch", ".pt2")])
def test_writes_beside_the_model_unless_told(besnn, moons_model, tmp_path, form, suffix):
    target = tmp_path / f"moons{suffix}"
    outcome = besnn("export", moons_model, "--format", form, "-o", target, "--json")
    assert outcome.code == 0, outcome.err
    facts = json.loads(outcome.out)
    assert facts["output"] == str(target)
    assert facts["bytes"] == target.stat().st_size > 0
    assert ("opset" in facts) == (form == "onnx")


def test_an_uncalibrated_model_is_refused_in_one_line(besnn, uncalibrated_model, tmp_path):
    outcome = besnn("export", uncalibrated_model, "-o", tmp_path / "model.onnx")
    assert outcome.code in (1, 2)
    assert len(outcome.err.strip().splitlines()) == 1
    assert "calibrate" in outcome.err
    assert list(tmp_path.iterdir()) == []


def test_torchs_exporter_keeps_its_remarks_to_itself(moons_model, tmp_path):
    command = [sys.executable, "-m", "besnn", "export", moons_model, "-o", tmp_path / "moons.onnx", "--quiet"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
