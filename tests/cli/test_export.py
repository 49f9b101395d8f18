import json
import shutil


def test_a_torch_program_lies_beside_the_model(besnn, moons_model, tmp_path):
    model, target = shutil.copy(moons_model, tmp_path / "moons.safetensors"), tmp_path / "moons.pt2"
    outcome = besnn("export", model, "--format", "torch", "--json")
    assert outcome.code == 0, outcome.err
    facts = json.loads(outcome.out)
    assert facts["output"] == str(target)
    assert facts["bytes"] == target.stat().st_size > 0
    assert "opset" not in facts


def test_a_graph_for_onnx_is_written_without_the_messages_of_torchs_exporter(besnn, moons_model, tmp_path):
    target = tmp_path / "moons.onnx"
    outcome = besnn("export", moons_model, "-o", target, "--json", "-")
    assert (outcome.code, outcome.err) == (0, "")
    assert json.loads(outcome.out) == {"output": str(target), "format": "onnx", "bytes": target.stat().st_size, "opset": 20}
