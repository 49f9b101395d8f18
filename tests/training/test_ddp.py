"""Two processes that share every batch against one that has it all, with gloo on CPUs."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from besnn.deployment.model_file import read_model_file
from besnn.detector import Detector
from besnn.tensor_file import read_tensor_file
from besnn.training.checkpoint import CHECKPOINT

pytestmark = pytest.mark.slow
SCRIPT = Path(__file__).with_name("ddp_runs.py")
SAME = ["be-snn", "matched", "patient", "averaged", "duq", "resumed"]


def run(*command: object) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("COV_", "COVERAGE_"))}
    return subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=600, env=environment)


@pytest.fixture(scope="module")
def alone(tmp_path_factory) -> Path:
    """What one process leaves."""
    folder = tmp_path_factory.mktemp("alone")
    done = run(sys.executable, "-W", "ignore", SCRIPT, 1, folder)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def together(tmp_path_factory) -> Path:
    """What two processes leave."""
    folder = tmp_path_factory.mktemp("together")
    done = run(sys.executable, "-W", "ignore", SCRIPT, 2, folder)
    assert done.returncode == 0, done.stderr
    return folder


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


def test_the_entropy_is_at_work_in_what_was_compared(alone):
    for name in ("be-snn", "matched"):
        _, header = read_tensor_file(alone / f"{name}.safetensors", CHECKPOINT)
        assert all(row["entropy"] > 0.01 for row in header["history"])


def test_patience_ends_all_processes_at_the_same_epoch(together):
    _, header = read_tensor_file(together / "patient.safetensors", CHECKPOINT)
    assert len(header["history"]) == 2


def test_a_run_continues_to_where_it_would_have_come(together):
    expected, header = read_tensor_file(together / "be-snn.safetensors", CHECKPOINT)
    found, found_header = read_tensor_file(together / "resumed.safetensors", CHECKPOINT)
    assert found_header["history"] == [pytest.approx(row, rel=1e-6) for row in header["history"]]
    for key, value in expected.items():
        assert torch.equal(found[key], value), key


def test_gradients_through_the_penalty_are_exact(alone, together):
    expected, header = read_tensor_file(alone / "gradients.safetensors", CHECKPOINT)
    found, _ = read_tensor_file(together / "gradients.safetensors", CHECKPOINT)
    assert len(expected) == header["parameters"]
    assert min(header["terms"].values()) > 0.01  # no term is switched off
    for name, value in expected.items():
        assert value.abs().max() > 0, name
        torch.testing.assert_close(found[name], value, rtol=1e-9, atol=1e-12)


def test_with_batchnorm_the_quality_is_the_same(alone, together):
    accuracies = []
    for folder in (alone, together):
        weights, header = read_tensor_file(folder / "normalised.safetensors", CHECKPOINT)
        assert all(bool(torch.isfinite(value).all()) for value in weights.values())
        assert header["spread"] == 0  # all processes end with the same weights and statistics
        accuracies.append(header["history"][-1]["validation_accuracy"])
    assert min(accuracies) > 0.85
    assert abs(accuracies[0] - accuracies[1]) < 0.1


def test_only_the_first_process_writes(together):
    for name in SAME:
        left = sorted(path.name.partition(".tfevents")[0] for path in (together / name).iterdir())
        assert left == ["checkpoint.safetensors", "events.out", "log.csv"]


def test_a_batch_that_does_not_divide(together):
    expected = "a batch of 17 does not divide among 2 processes: change training.batch_size"
    assert (together / "refusal.txt").read_text() == expected


TRAIN = [
    "train",
    "two-moons",
    "--device=cpu",
    "--epochs=2",
    "--set=backbone.hidden=[8]",
    "--set=backbone.feature_dim=4",
    "--set=method.members=2",
    "--set=method.noise_dim=4",
    "--set=method.hidden_dim=8",
    "--set=data.limit=300",
]


@pytest.fixture(scope="module")
def program(tmp_path_factory) -> Path:
    """`besnn` as a file, as it is when installed: Fabric starts further processes from the file that started the first."""
    path = tmp_path_factory.mktemp("program") / "besnn"
    path.write_text("from besnn.cli import main\n\nif __name__ == '__main__':\n    main()\n")
    return path


@pytest.fixture(scope="module")
def train(program, tmp_path_factory) -> Callable[..., tuple[Path, subprocess.CompletedProcess[str]]]:
    """Runs `besnn train`, perhaps by a launcher."""

    def command(*options: str, launcher: tuple[object, ...] = (sys.executable,)):
        model = tmp_path_factory.mktemp("model") / "model.safetensors"
        return model, run(*launcher, program, *TRAIN, "-o", model, *options)

    return command


def test_the_command_line_makes_the_same_calibrated_model_once(train):
    alone, done = train()
    assert done.returncode == 0, done.stderr
    expected, header = read_model_file(alone)
    torchrun = sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"
    for launcher in ((sys.executable,), torchrun):
        together, done = train("--devices=2", "--strategy=ddp", launcher=launcher)
        assert done.returncode == 0, done.stderr
        assert done.stdout.count(f"wrote {together}") == 1
        assert done.stderr.count("epoch 2") == 1
        found, found_header = read_model_file(together)
        assert found_header["calibration"] == header["calibration"]
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            torch.testing.assert_close(found[name], value, rtol=1e-3, atol=1e-4)
        assert Detector.load(together).threshold is not None
        assert sorted(path.suffix for path in together.parent.iterdir()) == [".run", ".safetensors"]


def test_wrong_use_is_one_line(train):
    model, done = train("--devices=2", "--strategy=ddp", "--set=training.batch_size=17")
    assert done.returncode == 2
    assert done.stderr == "besnn: a batch of 17 does not divide among 2 processes: change training.batch_size\n"
    assert not model.exists()
