"""Trains by several recipes in as many processes as are asked for: python ddp_runs.py PROCESSES FOLDER.

The first process leaves weights, histories and gradients in the folder, for comparison with those of one process alone.
"""

import sys
from pathlib import Path
from typing import Any

import torch
from lightning.fabric import Fabric
from torch import nn

from besnn.data import load, two_moons
from besnn.errors import InputError
from besnn.model import BESNN, Preprocessing
from besnn.objective import BESNNObjective
from besnn.storage.tensor_file import write_tensor_file
from besnn.training import RunOptions, Trainer, build_method, make_fabric, parse_recipe
from besnn.training.batches import ArraySource
from besnn.training.checkpoint import CHECKPOINT
from besnn.training.fit import fit_detector
from besnn.training.progress import Reporter
from besnn.training.trainer import LossModule

TINY: dict[str, Any] = {
    "name": "shared",
    "data": {"source": "two-moons"},
    "backbone": {"hidden": [8], "feature_dim": 4},
    "method": {"name": "be-snn", "members": 2, "noise_dim": 4, "hidden_dim": 8, "samples": 8},
    "training": {"epochs": 3, "batch_size": 16},
}
RUNS = {
    "be-snn": ["method.entropy_weight=0.1"],
    "own-inputs": [
        "method.entropy_weight=0.1",
        "method.match_counts=true",
        "method.own_inputs=true",
        "training.batch_size=32",
        "training.gradient_every=2",
    ],
    "patient": ["training.patience=1", "training.optimiser.learning_rate=1e-9"],
    "averaged": ["method={name: softmax}", "training.average_from=0.5"],
    "duq": ["method={name: duq, momentum: 0.9}"],
}
"""None of them with BatchNorm or augmentation: the mathematics says that they come to the same."""

ODD = {"odd": [], "odd-shares": ["method.own_inputs=true", "method.members=10"]}
"""Two processes refuse these: 17 inputs, or 10 for the ten members of each."""


class InterruptedRunError(Exception):
    """Stops a run."""


class StopAfter(Reporter):
    """Stops a run after some steps."""

    def __init__(self, steps: int) -> None:
        self.left = steps

    def step(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise InterruptedRunError


def train(fabric: Fabric, overrides: list[str], folder: Path, stop_after: int | None = None, resume: bool = False) -> None:
    """A run on Two Moons; writes weights and history next to its run folder."""
    recipe = parse_recipe(TINY, overrides)
    data = two_moons(200)
    source = ArraySource(data.subset(range(100)), fabric.device)
    held_out = ArraySource(data.subset(range(100, 199)), fabric.device)  # a number that two processes cannot halve
    fitted = Preprocessing.fit(source.inputs)
    preprocessing = Preprocessing((2,), fitted.mean, fitted.std / 5)  # wide data: the entropy term is active
    torch.manual_seed(0)
    model, objective = build_method(recipe, (2,), 2)
    reporter = Reporter() if stop_after is None else StopAfter(stop_after)
    options = RunOptions(folder, resume, reporter, checkpoint_every=4)
    trainer = Trainer(recipe, model, objective, preprocessing, fabric, options, "me")
    try:
        history = trainer.fit(source, held_out)
    except InterruptedRunError:
        return
    if fabric.is_global_zero:
        write_tensor_file(folder.with_suffix(".safetensors"), CHECKPOINT, model.state_dict(), {"history": history})


def differentiate(fabric: Fabric, objective: BESNNObjective, target: Path) -> None:
    """The gradients of all terms together, for a convolutional BE-SNN without BatchNorm in float64."""
    torch.manual_seed(0)
    extractor = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Softplus(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 6))
    model = BESNN(extractor, num_classes=2, feature_dim=6, members=3, noise_dim=4, hidden_dim=8, samples=16).double()
    x, labels = 5 * torch.randn(24, 1, 8, 8, dtype=torch.float64), torch.arange(24) % 2
    mine = torch.arange(24).view(fabric.world_size, -1)[fabric.global_rank]
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    wrapped, _ = fabric.setup(LossModule(model, objective), optimiser)
    torch.manual_seed(1)
    terms = wrapped(x[mine], labels[mine], {})
    fabric.backward(torch.stack(list(terms.values())).sum())
    found = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}
    if fabric.is_global_zero:
        values = {name: float(term.detach()) for name, term in terms.items()}
        write_tensor_file(target, CHECKPOINT, found, {"parameters": len(list(model.parameters())), "terms": values})


def pretrain(fabric: Fabric, folder: Path) -> None:
    """Members that begin with a plain network, whose trunk has BatchNorm as all have: digits, some epochs."""
    settings = ["data={source: digits, classes: [0, 1, 2, 3], calibration: 0}", "method.hidden_dim=32", "training.epochs=2"]
    settings += ["backbone={name: convnet, hidden: [16, 16], feature_dim: 16}", "training.optimiser.learning_rate=0.05"]
    recipe = parse_recipe(TINY, [*settings, "pretraining={epochs: 4, batch_size: 16, optimiser: {learning_rate: 0.05}}"])
    places = {"run_folder": folder / "pretrained", "plain_networks": folder / "plain-networks"}
    fitted = fit_detector(recipe, load("digits:train"), fabric=fabric, **places)
    weights = fitted.detector.model.feature_extractor.state_dict()
    state = torch.cat([value.double().flatten() for value in weights.values()])
    everywhere = fabric.all_gather(state).view(fabric.world_size, -1)
    if fabric.is_global_zero:
        header = {"history": fitted.history, "spread": float((everywhere - state).abs().max())}
        write_tensor_file(folder / "pretrained.safetensors", CHECKPOINT, weights, header)


def main(processes: int, folder: Path) -> None:
    strategy = "ddp" if processes > 1 else "auto"
    fabric = make_fabric(accelerator="cpu", devices=processes, strategy=strategy)
    for name, overrides in RUNS.items():
        train(fabric, overrides, folder / name)
    train(fabric, RUNS["be-snn"], folder / "resumed", stop_after=9)  # in the midst of an epoch, after a checkpoint
    train(fabric, RUNS["be-snn"], folder / "resumed", resume=True)
    pretrain(fabric, folder)
    exact = Fabric(accelerator="cpu", devices=processes, strategy=strategy, precision="64-true")
    exact.launch()
    differentiate(exact, BESNNObjective(), folder / "gradients.safetensors")
    differentiate(exact, BESNNObjective(own_inputs=True), folder / "own-gradients.safetensors")
    for name, overrides in ODD.items():
        try:
            train(fabric, [*overrides, f"training.batch_size={8 * processes + 1}"], folder / name)
        except InputError as error:
            if fabric.is_global_zero:
                (folder / f"{name}.txt").write_text(str(error))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(int(sys.argv[1]), Path(sys.argv[2]))
