"""Trains a tiny run in as many processes as are asked for, and writes its weights: python two_processes.py PROCESSES FILE."""

import sys
from pathlib import Path

import torch

from besnn.data import two_moons
from besnn.errors import InputError
from besnn.model import Preprocessing
from besnn.storage.tensor_file import write_tensor_file
from besnn.training import Trainer, build_method, make_fabric, parse_recipe
from besnn.training.checkpoint import CHECKPOINT
from besnn.training.source import ArraySource

RECIPE = {
    "name": "shared",
    "data": {"source": "two-moons"},
    "backbone": {"hidden": [8], "feature_dim": 4},
    # The entropy of half a batch is not half of the entropy of a batch; the other terms are means over rows.
    "method": {"name": "be-snn", "members": 2, "noise_dim": 4, "hidden_dim": 8, "samples": 8, "entropy_weight": 0},
    "training": {"epochs": 2, "batch_size": 16},
}


def main(processes: int, target: Path) -> None:
    fabric = make_fabric(accelerator="cpu", devices=processes, strategy="ddp" if processes > 1 else "auto")
    source = ArraySource(two_moons(100), fabric.device)
    preprocessing = Preprocessing.fit(source.inputs)
    for overrides in ([], [f"training.batch_size={8 * processes + 1}"]):
        recipe = parse_recipe(RECIPE, overrides)
        torch.manual_seed(0)
        model, objective = build_method(recipe, (2,), 2)
        trainer = Trainer(recipe, model, objective, preprocessing, fabric, run_folder=target.parent / "run")
        try:
            history = trainer.fit(source)
        except InputError as error:
            if fabric.is_global_zero:
                print(error)
        else:
            if fabric.is_global_zero and not overrides:
                write_tensor_file(target, CHECKPOINT, model.state_dict(), {"history": history})


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
