"""The optimiser, and what changes over a run: learning rates and term weights as pure functions of its progress."""

import math

import torch
from torch import nn
from torch.nn.modules.conv import _ConvNd

from besnn.layers import fast_parameters
from besnn.recipe.config import OptimiserConfig, RampConfig, ScheduleConfig, TrainingConfig


def parameter_groups(model: nn.Module, config: OptimiserConfig) -> list[dict[str, object]]:
    """Group parameters by what they are: weights of linear and convolution layers, fast weights, and the rest.

    Each group has its peak learning rate, `rate`, and its weight decay; the rest is not decayed. Parameters that require no
    gradient are in no group.
    """
    fast = {id(p) for p in fast_parameters(model)}
    layers = [module for module in model.modules() if isinstance(module, nn.Linear | _ConvNd)]
    decayed = {id(p) for layer in layers for name, p in layer.named_parameters(recurse=False) if name == "weight"}
    parameters = [p for p in model.parameters() if p.requires_grad]  # each once, tied ones too
    rate, fast_rate = config.learning_rate, config.learning_rate * config.fast_rate
    groups: list[dict[str, object]] = [
        {"params": [p for p in parameters if id(p) in decayed], "rate": rate, "weight_decay": config.weight_decay},
        {"params": [p for p in parameters if id(p) in fast], "rate": fast_rate, "weight_decay": config.fast_decay},
        {"params": [p for p in parameters if id(p) not in decayed | fast], "rate": rate, "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


def build_optimiser(model: nn.Module, config: OptimiserConfig) -> torch.optim.Optimizer:
    """Build SGD with Nesterov momentum, or AdamW."""
    groups = parameter_groups(model, config)
    if config.name == "adamw":
        return torch.optim.AdamW(groups, lr=config.learning_rate)
    return torch.optim.SGD(groups, lr=config.learning_rate, momentum=config.momentum, nesterov=config.momentum > 0)


def set_learning_rate(optimiser: torch.optim.Optimizer, factor: float) -> None:
    """Set each group's learning rate to its peak times a factor."""
    for group in optimiser.param_groups:
        group["lr"] = group["rate"] * factor


def learning_rate_factor(schedule: ScheduleConfig, progress: float) -> float:
    """Return what multiplies the learning rate at `progress` (0 at the first step, 1 after the last)."""
    if progress < schedule.warmup:
        return progress / schedule.warmup
    rest = (progress - schedule.warmup) / (1 - schedule.warmup)
    match schedule.name:
        case "cosine":
            return 0.5 * (1 + math.cos(math.pi * rest))
        case "linear":
            return 1 - rest
        case "step":
            return 0.1 ** sum(progress >= milestone for milestone in schedule.milestones)
        case "constant":
            return 1.0


def ramp_factor(ramp: RampConfig, progress: float) -> float:
    """Return 0 before the ramp starts, 1 from its end on, and interpolate linearly between them."""
    if progress < ramp.start:
        return 0.0
    return 1.0 if progress >= ramp.end else (progress - ramp.start) / (ramp.end - ramp.start)


def term_factors(training: TrainingConfig, step: int, progress: float) -> dict[str, float]:
    """Return what multiplies the terms of the objective at a step; terms without an entry keep their weight."""
    factors = {name: ramp_factor(ramp, progress) for name, ramp in training.ramps.items()}
    every = training.gradient_every
    if every > 1:
        factors["gradient"] = factors.get("gradient", 1.0) * (every if step % every == 0 else 0)
    return factors
