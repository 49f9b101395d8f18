"""Which layers of an unknown network to look at: found by one pass of real inputs, with hooks on every layer."""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from besnn.detection.densities import Head
from besnn.errors import InputError
from besnn.layers.folding.fold import INPUT, first_tensor
from besnn.model.feature_layers import layer_features

EXAMPLES = 4
"""Inputs that are run to find layers."""
MOST_STAGES = 4
"""Stages that are looked at, counted from the last: what comes before are edges and colours."""


@dataclass(frozen=True)
class FoundLayers:
    """The layers of a network that are worth looking at.

    Attributes:
        stages: the layer that ends each resolution, or returns tokens; without those that are what goes into the classifier.
        features: what goes into the classifier, as `fc:input`; None if the network does not end in a linear layer.
        head: that linear layer.
    """

    stages: tuple[str, ...]
    features: str | None
    head: Head | None

    @property
    def names(self) -> tuple[str, ...]:
        """All of them, in the order of the network."""
        return (*self.stages, *([self.features] if self.features is not None else []))


def find_layers(network: nn.Module, x: Tensor) -> FoundLayers:
    """Run a batch `[n, ...]` of the network's inputs, and choose layers by the shapes of what they return.

    >>> network = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 2)).eval()
    >>> find_layers(network, torch.rand(5, 1, 8, 8)).names
    ('1', '2', '4:input')
    """
    trace = _traced(network, x)
    features, head = _classifier(network, trace)
    pooled = {name: trace.outputs[name].pooled for name in _stage_ends(network, trace, x)}
    if features is not None:
        pooled[features] = trace.inputs[features.removesuffix(INPUT)].pooled
    names = list(pooled)
    different = [
        name for at, name in enumerate(names) if not any(_same(pooled[name], pooled[later]) for later in names[at + 1 :])
    ]
    stages = [name for name in different if name != features][-MOST_STAGES:]
    if not stages and features is None:
        raise InputError(
            "no inner layer of the network can be looked at: name some with layers=, or add a linear layer at its end"
        )
    return FoundLayers(tuple(stages), features, head)


def named_layers(network: nn.Module, x: Tensor, names: Sequence[str]) -> FoundLayers:
    """Return the given layers; if what goes into the classifier is among them, the classifier is found too."""
    trace = _traced(network, x)
    features, head = _classifier(network, trace)
    for name in names:
        if name.removesuffix(INPUT) not in trace.outputs:
            known = ", ".join(trace.outputs) or "none"
            raise InputError(f"layers={name!r}: the network runs no layer of that name that returns numbers; it has {known}")
    stages = tuple(name for name in names if name != features)
    if features in names:
        return FoundLayers(stages, features, head)
    vectors = [name for name in names if len(trace.outputs[name.removesuffix(INPUT)].shape) == 2]  # the last one stands in
    return FoundLayers(tuple(name for name in names if name not in vectors[-1:]), vectors[-1] if vectors else None, None)


class _Seen(NamedTuple):
    """What is kept of a tensor: maps of all layers together could exceed memory."""

    shape: torch.Size
    pooled: Tensor  # [n, d]


@dataclass
class _Trace:
    logits: Tensor = field(default_factory=lambda: torch.empty(0))
    inputs: dict[str, _Seen] = field(default_factory=dict)
    outputs: dict[str, _Seen] = field(default_factory=dict)


@torch.no_grad()
def _traced(network: nn.Module, x: Tensor) -> _Trace:
    """Run the network and note the last input and output of each layer that takes and returns a batch of numbers."""
    x, trace = x[:EXAMPLES], _Trace()

    def keep(name: str, module: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any], output: Any) -> None:
        into, out = first_tensor((*arguments, *keywords.values())), first_tensor(output)
        for values, tensor in ((trace.inputs, into), (trace.outputs, out)):
            values.pop(name, None)
            if _is_batch(out, len(x)) and _is_batch(tensor, len(x)):
                values[name] = _Seen(tensor.shape, _pooled(tensor).clone())  # the next layer may overwrite it

    with ExitStack() as hooks:  # removes them at the end
        for name, module in network.named_modules():
            if name:
                hooks.enter_context(module.register_forward_hook(partial(keep, name), with_kwargs=True))
        trace.logits = network(x)
    return trace


def _stage_ends(network: nn.Module, trace: _Trace, x: Tensor) -> list[str]:
    """Return, for each resolution, the layer that returns it and holds most layers; of equals the last, in their order."""
    sizes = {name: sum(1 for _ in module.modules()) for name, module in network.named_modules()}
    best: dict[tuple[int, ...], str] = {}
    for name, output in trace.outputs.items():
        shape = _places(output.shape, x)
        if shape is not None and (shape not in best or sizes[name] >= sizes[best[shape]]):
            best.pop(shape, None)
            best[shape] = name
    return list(best.values())


def _is_batch(value: Any, batch: int) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point() and value.ndim >= 2 and len(value) == batch


def _places(shape: torch.Size, x: Tensor) -> tuple[int, ...] | None:
    """Return the resolution of an image's map `[n, c, h, w]`, or the number of tokens `[n, tokens, d]`; None for others."""
    if len(shape) == 3:
        return (shape[1],)
    if len(shape) != 4 or x.ndim != 4 or shape[2] == shape[3] == 1:
        return None
    turned = x.shape[2] == x.shape[3] and shape[2] != shape[3]  # [n, h, w, c]
    return None if turned else tuple(shape[2:])


def _classifier(network: nn.Module, trace: _Trace) -> tuple[str | None, Head | None]:
    """Return the name of what goes into the linear layer that returns the logits, and that layer."""
    modules = dict(network.named_modules())
    for name, output in reversed(trace.outputs.items()):
        weight, bias = (getattr(modules[name], each, None) for each in ("weight", "bias"))
        if name not in trace.inputs or not isinstance(weight, Tensor) or weight.ndim != 2:
            continue
        into, out = trace.inputs[name], output.pooled
        if into.shape != (len(out), weight.shape[1]) or not torch.equal(out, trace.logits):
            continue
        bias = bias if isinstance(bias, Tensor) else weight.new_zeros(len(weight))
        if torch.allclose(into.pooled @ weight.T + bias, out, rtol=1e-3, atol=1e-3 * float(out.abs().max())):
            return f"{name}{INPUT}", Head(weight, bias)
    return None, None


def _pooled(output: Tensor) -> Tensor:
    return layer_features({"a": [output]}, "a", 1, output.dtype)[0]


def _same(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and torch.allclose(one, other, rtol=1e-4, atol=1e-5)
