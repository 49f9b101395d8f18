"""The optimiser, with its groups chosen by what a parameter is, not by what it is called."""

import torch
from torch import nn
from torch.nn.modules.conv import _ConvNd

from besnn.layers import fast_parameters
from besnn.recipe.config import OptimiserConfig


def parameter_groups(model: nn.Module, config: OptimiserConfig) -> list[dict[str, object]]:
    """Weights of linear and convolution layers, fast weights, and the rest, which is not decayed; `rate` is a group's peak.

    What requires no gradient is in no group: freeze a part of a network as usual in torch.
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
    """SGD with Nesterov momentum, or AdamW."""
    groups = parameter_groups(model, config)
    if config.name == "adamw":
        return torch.optim.AdamW(groups, lr=config.learning_rate)
    return torch.optim.SGD(groups, lr=config.learning_rate, momentum=config.momentum, nesterov=config.momentum > 0)


def set_learning_rate(optimiser: torch.optim.Optimizer, factor: float) -> None:
    """Sets each group's rate to its peak times a factor."""
    for group in optimiser.param_groups:
        group["lr"] = group["rate"] * factor
