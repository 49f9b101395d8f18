import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from besnn.storage.tensor_file import read_tensor_file
from besnn.training.checkpoint import CHECKPOINT

SCRIPT = Path(__file__).with_name("two_processes.py")


@pytest.mark.slow
def test_two_processes_share_every_batch_and_reach_the_weights_of_one(tmp_path):
    alone, together = tmp_path / "alone" / "weights.safetensors", tmp_path / "together" / "weights.safetensors"
    runpy.run_path(str(SCRIPT))["main"](1, alone)
    done = subprocess.run([sys.executable, "-W", "ignore", SCRIPT, "2", together], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "a batch of 17 does not divide among 2 processes: change training.batch_size" in done.stdout
    assert (together.parent / "run" / "log.csv").is_file()
    expected, _ = read_tensor_file(alone, CHECKPOINT)
    found, _ = read_tensor_file(together, CHECKPOINT)
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-6)
