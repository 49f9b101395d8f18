"""Checkpoints: one file, replaced atomically, so that a run killed at any moment continues as if it had not been killed."""

from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from torch import nn

from besnn.errors import DataError, InputError, one_line
from besnn.storage.tensor_file import FileKind, Tensors, read_tensor_file, write_tensor_file

CHECKPOINT = FileKind("besnn-checkpoint", version=1, noun="checkpoint", remedy="delete it to start the run again")


def checkpoint_in(run_folder: Path) -> Path:
    """Return the path of a run's checkpoint."""
    return run_folder / "checkpoint.safetensors"


@dataclass
class Progress:
    """How far a run has come."""

    identity: str  # a digest of the recipe and the data; a run continues only from a checkpoint with the same one
    step: int = 0  # optimiser steps taken
    history: list[dict[str, float]] = field(default_factory=list)  # one row of metrics per epoch
    best_loss: float | None = None  # the lowest validation loss so far, for early stopping
    best_epoch: int = 0  # the epoch with that loss
    averaged: int = 0  # how many steps the running average of weights covers
    seconds: float = 0.0  # how long it took, in all the legs of the run together


def save_checkpoint(
    path: Path, progress: Progress, model: nn.Module, optimiser: torch.optim.Optimizer, kept: dict[str, Tensors]
) -> None:
    """Write weights, optimiser state and `kept` (further groups of tensors: the best weights, the average) atomically."""
    tensors = {f"model/{name}": value for name, value in model.state_dict().items()}
    for index, state in optimiser.state_dict()["state"].items():
        tensors |= {f"optimiser/{index}/{name}": value for name, value in state.items() if value is not None}
    for group, members in kept.items():
        tensors |= {f"{group}/{name}": value for name, value in members.items()}
    write_tensor_file(path, CHECKPOINT, tensors, {"progress": asdict(progress)})


def load_checkpoint(
    path: Path, identity: str, model: nn.Module, optimiser: torch.optim.Optimizer, device: torch.device
) -> tuple[Progress, dict[str, Tensors]]:
    """Restore model and optimiser in place; return the progress and the further groups of tensors, on the device."""
    tensors, header = read_tensor_file(path, CHECKPOINT)
    groups = _by_prefix({name: value.to(device) for name, value in tensors.items()})
    try:
        progress = Progress(**header["progress"])
        if progress.identity != identity:
            raise InputError(f"checkpoint {path} belongs to another recipe or other data: use another run folder, or delete it")
        model.load_state_dict(groups.pop("model"))
        state = {int(index): values for index, values in _by_prefix(groups.pop("optimiser", {})).items()}
        optimiser.load_state_dict({"state": state, "param_groups": optimiser.state_dict()["param_groups"]})
    except (KeyError, TypeError, RuntimeError) as error:
        raise DataError(f"checkpoint {path} does not fit this besnn ({one_line(error)}): {CHECKPOINT.remedy}") from None
    return progress, groups


def seconds_in(path: Path) -> float:
    """Return how long the training up to a checkpoint took; 0 without a checkpoint."""
    return float(read_tensor_file(path, CHECKPOINT)[1]["progress"].get("seconds", 0.0)) if path.exists() else 0.0


def _by_prefix(tensors: Tensors) -> dict[str, Tensors]:
    """Group tensors by what stands before the first slash in their names."""
    groups: dict[str, Tensors] = {}
    for name, value in tensors.items():
        group, _, rest = name.partition("/")
        groups.setdefault(group, {})[rest] = value
    return groups


@torch.no_grad()
def average_weights(average: Tensors, model: nn.Module, count: int) -> None:
    """Update the running mean of a model's weights and statistics over `count` steps, this one included."""
    for name, value in model.state_dict().items():
        if value.is_floating_point():  # BatchNorm's count of batches has no mean
            mean = average.setdefault(name, torch.zeros_like(value))
            mean += (value - mean) / count
