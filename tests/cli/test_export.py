import json
import shutil
import subprocess
import sys


def test_a_torch_program_lies_beside_the_model(besnn, moons_model, tmp_path):
    model, target = shutil.copy(moons_model, tmp_path / "moons.safetensors"), tmp_path / "moons.pt2"
    outcome = besnn("export", model, "--format", "torch", "--json")
    assert outcome.code == 0, outcome.err
    facts = json.loads(outcome.out)
    assert facts["output"] == str(target)
    assert facts["bytes"] == target.stat().st_size > 0
    assert "opset" not in facts


def test_a_graph_for_onnx_is_written_without_the_messages_of_torchs_exporter(moons_model, tmp_path):
    """In a process of its own: what torch prints and warns about depends on what ran before."""
    shutil.copy(moons_model, tmp_path / "moons.safetensors")
    command = [sys.executable, "-m", "besnn", "export", "moons.safetensors", "--json", "-"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    size = (tmp_path / "moons.onnx").stat().st_size
    assert json.loads(done.stdout) == {"output": "moons.onnx", "format": "onnx", "bytes": size, "opset": 20}
