"""Two processes that share every batch against one that has it all, with gloo on CPUs."""

import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch

from besnn.cli.app import run
from besnn.detector import Detector
from besnn.storage.tensor_file import MODEL_FILE, read_tensor_file
from besnn.training.checkpoint import CHECKPOINT
from tests.training import ddp_runs

pytestmark = pytest.mark.slow
PATIENCE = 600.0
SCRIPT = Path(ddp_runs.__file__)
SAME = ["be-snn", "own-inputs", "patient", "averaged", "duq", "resumed"]


def start(*command: object) -> subprocess.Popen[str]:
    """Starts a command; most of its time goes into imports, so several of them run side by side."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("COV_", "COVERAGE_"))}
    environment["OMP_NUM_THREADS"] = "1"
    return subprocess.Popen([*map(str, command)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of a command."""
    try:
        out, err = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
    return process.returncode, out, err


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> tuple[Path, Path]:
    """What one process leaves, and what two processes leave."""
    left = tmp_path_factory.mktemp("alone"), tmp_path_factory.mktemp("together")
    together = start(sys.executable, "-W", "ignore", SCRIPT, 2, left[1])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ddp_runs.main(1, left[0])
    code, _, err = finish(together)
    assert code == 0, err
    return left


@pytest.fixture
def alone(folders) -> Path:
    return folders[0]


@pytest.fixture
def together(folders) -> Path:
    return folders[1]


@pytest.mark.parametrize("name", SAME)
def test_the_same_loss_curve_and_the_same_weights(name, alone, together):
    expected, header = read_tensor_file(alone / f"{name}.safetensors", CHECKPOINT)
    found, found_header = read_tensor_file(together / f"{name}.safetensors", CHECKPOINT)
    history, found_history = header["history"], found_header["history"]
    assert len(found_history) == len(history)
    for row, found_row in zip(history, found_history, strict=True):
        assert found_row == pytest.approx(row, rel=1e-4, abs=1e-6)
    for key, value in expected.items():
        torch.testing.assert_close(found[key], value, rtol=1e-3, atol=1e-5)


def test_patience_ends_all_processes_at_the_same_epoch(together):
    _, header = read_tensor_file(together / "patient.safetensors", CHECKPOINT)
    assert len(header["history"]) == 2


def test_a_run_continues_to_where_it_would_have_come(together):
    expected, header = read_tensor_file(together / "be-snn.safetensors", CHECKPOINT)
    found, found_header = read_tensor_file(together / "resumed.safetensors", CHECKPOINT)
    assert found_header["history"] == [pytest.approx(row, rel=1e-6) for row in header["history"]]
    for key, value in expected.items():
        assert torch.equal(found[key], value), key


@pytest.mark.parametrize("file", ["gradients", "own-gradients"])
def test_gradients_through_the_penalty_are_exact(file, alone, together):
    expected, header = read_tensor_file(alone / f"{file}.safetensors", CHECKPOINT)
    found, _ = read_tensor_file(together / f"{file}.safetensors", CHECKPOINT)
    assert len(expected) == header["parameters"]
    assert min(header["terms"].values()) > 0.01  # no term is switched off
    for name, value in expected.items():
        assert value.abs().max() > 0, name
        torch.testing.assert_close(found[name], value, rtol=1e-9, atol=1e-12)


def test_with_batchnorm_the_quality_is_the_same(alone, together):
    accuracies = []
    for folder in (alone, together):
        weights, header = read_tensor_file(folder / "pretrained.safetensors", CHECKPOINT)
        assert all(bool(torch.isfinite(value).all()) for value in weights.values())
        assert header["spread"] == 0  # all processes end with the same weights and statistics
        accuracies.append(header["history"][-1]["validation_accuracy"])
    assert min(accuracies) > 0.85
    assert abs(accuracies[0] - accuracies[1]) < 0.1


def test_only_the_first_process_writes(together):
    for name in SAME:
        left = sorted(path.name.partition(".tfevents")[0] for path in (together / name).iterdir())
        assert left == ["checkpoint.safetensors", "events.out", "log.csv"]


def test_a_plain_network_is_kept_once(together):
    assert [path.suffix for path in (together / "plain-networks").iterdir()] == [".safetensors"]
    assert (together / "pretrained" / "plain" / "log.csv").read_text().count("\n") == 1 + 4


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("odd", "cannot split a batch of 17 among 2 processes"),
        ("odd-shares", "cannot split a batch of 10 among 2 processes of 10 members each"),
    ],
)
def test_a_batch_that_does_not_divide(name, says, together):
    assert (together / f"{name}.txt").read_text() == f"{says}: change training.batch_size"


TRAIN = [
    "train",
    "two-moons",
    "--device=cpu",
    "--epochs=2",
    "--set=training.batch_size=64",
    "--set=backbone.hidden=[8]",
    "--set=backbone.feature_dim=4",
    "--set=method.members=2",
    "--set=method.noise_dim=4",
    "--set=method.hidden_dim=8",
    "--set=data.limit=300",
]


def test_the_command_line_makes_the_same_calibrated_model_once(tmp_path):
    """Under torchrun as in this one process; with processes of its own, an error is printed once."""
    # `besnn` as a file, as it is when installed: Fabric starts further processes from the file that started the first.
    program = tmp_path / "besnn"
    program.write_text("from besnn.cli import main\n\nif __name__ == '__main__':\n    main()\n")
    shared = ["--devices=2", "--strategy=ddp"]
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    (tmp_path / "shared").mkdir()
    model, none = tmp_path / "shared" / "model.safetensors", tmp_path / "none.safetensors"
    trained = start(sys.executable, *torchrun, program, *TRAIN, "-o", model, *shared)
    refused = start(sys.executable, program, *TRAIN, "-o", none, *shared, "--set=training.batch_size=17")
    code, _, err = finish(refused)
    assert (code, err) == (2, "besnn: cannot split a batch of 17 among 2 processes: change training.batch_size\n")
    assert not none.exists()
    alone = tmp_path / "alone.safetensors"
    assert run([*TRAIN, "-o", str(alone), "--quiet"]) == 0
    expected, header = read_tensor_file(alone, MODEL_FILE)
    code, out, err = finish(trained)
    assert code == 0, err
    assert out.count(f"wrote {model}") == 1
    assert err.count("epoch 2") == 1
    found, found_header = read_tensor_file(model, MODEL_FILE)
    found_rule, rule = found_header["calibration"].pop("labels"), header["calibration"].pop("labels")
    assert found_header["calibration"] == header["calibration"]
    assert found_rule.pop("temperature") == pytest.approx(rule.pop("temperature"), rel=1e-3)
    assert found_rule == rule
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-3, atol=1e-4)
    assert Detector.load(model).threshold is not None
    assert sorted(path.suffix for path in model.parent.iterdir()) == [".run", ".safetensors"]
