"""Reading inner layers' outputs along with a network's own."""

import threading
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from besnn.errors import InputError


class Tapped(nn.Module):
    """A network that returns a tuple: its output, and those of the inner layers of the names given.

    >>> network = Tapped(nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 4)), "1")
    >>> [list(part.shape) for part in network(torch.rand(5, 2))]
    [[5, 4], [5, 3]]
    """

    def __init__(self, module: nn.Module, *layers: str) -> None:
        super().__init__()
        self.module, self.layers = module, layers
        self._inner: dict[int, dict[str, Tensor]] = {}  # by thread: several may be inside the network at once
        for layer in layers:
            check_layer(module, layer).register_forward_hook(partial(self._catch, layer))

    def _catch(self, layer: str, module: nn.Module, arguments: Any, output: Tensor) -> None:
        self._inner.setdefault(_thread(), {})[layer] = output

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """The network's output and the inner layers'."""
        output = self.module(x)
        inner = self._inner.pop(_thread())
        return output, *(inner[layer] for layer in self.layers)


def _thread() -> int:
    return 0 if torch.compiler.is_compiling() else threading.get_ident()


def check_layer(module: nn.Module, layer: str) -> nn.Module:
    """The inner module of that name."""
    modules: dict[str, nn.Module] = dict(module.named_modules())
    if layer not in modules or not layer:
        names = ", ".join(name for name in modules if name)
        raise InputError(f"the network has no layer {layer!r}: its layers are {names}")
    return modules[layer]
