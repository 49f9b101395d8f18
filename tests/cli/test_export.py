import json
import shutil
import subprocess
import sys

import pytest


@pytest.mark.parametrize(("form", "suffix"), [("onnx", ".onnx"), ("torch", ".pt2")])
def test_the_file_lies_beside_the_model(besnn, moons_model, tmp_path, form, suffix):
    model, target = shutil.copy(moons_model, tmp_path / "moons.safetensors"), tmp_path / f"moons{suffix}"
    outcome = besnn("export", model, "--format", form, "--json")
    assert outcome.code == 0, outcome.err
    facts = json.loads(outcome.out)
    assert facts["output"] == str(target)
    assert facts["bytes"] == target.stat().st_size > 0
    assert ("opset" in facts) == (form == "onnx")


def test_the_messages_of_torchs_exporter_are_hidden(moons_model, tmp_path):
    command = [sys.executable, "-m", "besnn", "export", moons_model, "-o", tmp_path / "moons.onnx", "--quiet"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
