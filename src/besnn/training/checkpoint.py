"""Checkpoints: one safetensors file, replaced whole, so that a run killed at any moment continues as if it had not been."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from besnn.errors import DataError, InputError
from besnn.files import atomic_path

FORMAT = "besnn-checkpoint-1"


@dataclass
class Progress:
    """Where a run stands.

    Attributes:
        recipe: a digest of the recipe and the data, so that a run continues only as itself.
        step: optimiser steps taken.
        history: one row of metrics an epoch.
        best_loss: the lowest validation loss so far, for early stopping.
        best_epoch: when that was.
        averaged: how many steps' weights the running average holds.
    """

    recipe: str
    step: int = 0
    history: list[dict[str, float]] = field(default_factory=list)
    best_loss: float | None = None
    best_epoch: int = 0
    averaged: int = 0


def save_checkpoint(
    path: Path, progress: Progress, model: nn.Module, optimiser: torch.optim.Optimizer, kept: dict[str, dict[str, Tensor]]
) -> None:
    """Writes weights, optimiser state and `kept` (further sets of weights: the best, the average) atomically."""
    tensors = {f"model/{name}": value for name, value in model.state_dict().items()}
    for index, state in optimiser.state_dict()["state"].items():
        tensors |= {f"optimiser/{index}/{name}": value for name, value in state.items() if value is not None}
    for group, weights in kept.items():
        tensors |= {f"{group}/{name}": value for name, value in weights.items()}
    contiguous = {name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()}
    with atomic_path(path) as partial:
        save_file(contiguous, partial, metadata={"format": FORMAT, "progress": json.dumps(asdict(progress))})


def load_checkpoint(
    path: Path, recipe: str, model: nn.Module, optimiser: torch.optim.Optimizer
) -> tuple[Progress, dict[str, dict[str, Tensor]]]:
    """Restores model and optimiser in place; returns the progress and the further sets of weights."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # not a dict
    except (SafetensorError, OSError) as error:
        raise DataError(f"checkpoint {path} cannot be read ({error}): delete it to start the run again") from None
    if metadata.get("format") != FORMAT:
        raise DataError(f"checkpoint {path} is not of format {FORMAT}: delete it to start the run again")
    progress = Progress(**json.loads(metadata["progress"]))
    if progress.recipe != recipe:
        raise InputError(f"checkpoint {path} belongs to another recipe or other data: use another run folder, or delete it")
    groups: dict[str, dict[str, Tensor]] = {}
    for name, value in tensors.items():
        group, _, rest = name.partition("/")
        groups.setdefault(group, {})[rest] = value
    model.load_state_dict(groups.pop("model"))
    _load_optimiser(optimiser, groups.pop("optimiser", {}))
    return progress, groups


def _load_optimiser(optimiser: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    state: dict[int, dict[str, Any]] = {}
    for name, value in tensors.items():
        index, _, key = name.partition("/")
        state.setdefault(int(index), {})[key] = value
    optimiser.load_state_dict({"state": state, "param_groups": optimiser.state_dict()["param_groups"]})
