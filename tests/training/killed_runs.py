"""Train the same tiny run at least twice, kill it at random moments, and print the outcome as JSON.

    python killed_runs.py FOLDER KILLS

It stays one process that has everything imported; every attempt at a run is a fork of it, ended by SIGKILL or by itself. After
each kill the checkpoint must be absent or whole; after each finished run the model file's weights are compared with those of a
run that was not killed.
"""

import hashlib
import json
import os
import random
import signal
import sys
import time
from pathlib import Path

import torch
import torch.utils.tensorboard  # or else every fork would import it

from besnn.data import two_moons
from besnn.storage.tensor_file import MODEL_FILE, read_tensor_file
from besnn.training import make_fabric, parse_recipe
from besnn.training.checkpoint import CHECKPOINT
from besnn.training.fit import fit_detector

RECIPE = {
    "name": "killed",
    "data": {"source": "two-moons"},
    "backbone": {"hidden": [8], "feature_dim": 4},
    "method": {"name": "be-snn", "members": 2, "noise_dim": 4, "hidden_dim": 8, "samples": 8},
    "training": {"epochs": 3, "batch_size": 16, "average_from": 0.5},
    "score": {"name": "auto"},
}
DATA = two_moons(240)


def train(folder: Path) -> None:
    """A whole run, from the checkpoint on if there is one; half of its time goes into writing checkpoints."""
    fabric = make_fabric(accelerator="cpu")
    fitted = fit_detector(
        parse_recipe(RECIPE),
        DATA,
        fabric=fabric,
        run_folder=folder / "run",
        resume=True,
        checkpoint_every=1,
        checkpoint_pause=0,
    )
    fitted.detector.save(folder / "model.safetensors")


def attempt(folder: Path, kill_after: float | None) -> bool:
    """One fork that trains; whether it came to its end before it was killed."""
    child = os.fork()
    if child == 0:
        try:
            train(folder)
        except BaseException as error:
            print(f"the run failed: {error!r}", file=sys.stderr)
            os._exit(1)
        os._exit(0)
    if kill_after is not None:
        time.sleep(kill_after)
        os.kill(child, signal.SIGKILL)  # of no effect on one that has ended
    _, status = os.waitpid(child, 0)
    if os.WIFEXITED(status) and os.WEXITSTATUS(status):
        sys.exit("a run failed")
    return os.WIFEXITED(status)


def weights_digest(folder: Path) -> str:
    """What the model file's tensors are."""
    tensors, _ = read_tensor_file(folder / "model.safetensors", MODEL_FILE)
    sha = hashlib.sha256()
    for name in sorted(tensors):
        sha.update(name.encode() + tensors[name].numpy().tobytes())
    return sha.hexdigest()


def main(root: Path, kills: int) -> None:
    torch.set_num_threads(1)  # a fork has no other threads
    began = time.monotonic()
    attempt(root / "undisturbed", None)
    duration = time.monotonic() - began
    expected = weights_digest(root / "undisturbed")
    random.seed(0)
    killed, finished, wrong, steps, left_over = 0, 0, [], set(), set()
    while killed < kills or finished < 2:
        folder = root / f"run-{finished}"
        while not attempt(folder, random.uniform(0, duration / 2)):
            killed += 1
            checkpoint = folder / "run" / "checkpoint.safetensors"
            if checkpoint.exists():
                steps.add(read_tensor_file(checkpoint, CHECKPOINT)[1]["progress"]["step"])
        finished += 1
        if weights_digest(folder) != expected:
            wrong.append(folder.name)
        left_over |= {path.name for path in (folder / "run").iterdir() if not path.name.startswith("events.")}
    outcome = {"killed": killed, "finished": finished, "wrong": wrong, "steps": sorted(steps), "files": sorted(left_over)}
    print(json.dumps(outcome))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
