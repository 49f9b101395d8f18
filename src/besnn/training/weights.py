"""Weights: how they lie in memory, and those that a run keeps beside the model's own, a running average and the best so far."""

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

Weights = dict[str, Tensor]


def lay_out(model: nn.Module, memory_format: torch.memory_format) -> None:
    """Puts the weights of convolutions of images into a memory layout; their outputs then come in it too.

    >>> layer = nn.Conv2d(3, 4, 3)
    >>> lay_out(layer, torch.channels_last)
    >>> layer.weight.stride()
    (27, 1, 9, 3)
    """
    for layer in model.modules():
        if isinstance(layer, _ConvNd) and layer.weight.ndim == 4:
            layer.weight.data = layer.weight.data.contiguous(memory_format=memory_format)


def copy_weights(model: nn.Module) -> Weights:
    """A copy of all weights and statistics."""
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


@torch.no_grad()
def average_weights(average: Weights, model: nn.Module, count: int) -> None:
    """Takes a model's weights and statistics into their running mean over `count` steps, this one included.

    >>> layer, average = nn.Linear(1, 1, bias=False), {}
    >>> for count, weight in enumerate([1.0, 2.0, 6.0], start=1):
    ...     _ = nn.init.constant_(layer.weight, weight)
    ...     average_weights(average, layer, count)
    >>> average["weight"].item()
    3.0
    """
    for name, value in model.state_dict().items():
        if value.is_floating_point():  # BatchNorm counts its batches, which has no mean
            mean = average.setdefault(name, torch.zeros_like(value))
            mean += (value - mean) / count


def load_average(average: Weights, model: nn.Module) -> None:
    """Puts averaged weights into a model; what has no average stays."""
    model.load_state_dict(model.state_dict() | average)
