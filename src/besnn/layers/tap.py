"""Reading an inner layer's output along with a network's own."""

import threading
from typing import Any

import torch
from torch import Tensor, nn

from besnn.errors import InputError


class Tapped(nn.Module):
    """A network that returns a pair: its output, and that of the inner layer called `layer`.

    >>> network = Tapped(nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 4)), layer="1")
    >>> [list(part.shape) for part in network(torch.rand(5, 2))]
    [[5, 4], [5, 3]]
    """

    def __init__(self, module: nn.Module, layer: str) -> None:
        super().__init__()
        self.module = module
        self._inner: dict[int, Tensor] = {}  # by thread: several may be inside the network at once
        check_layer(module, layer).register_forward_hook(self._catch)

    def _catch(self, module: nn.Module, arguments: Any, output: Tensor) -> None:
        self._inner[_thread()] = output

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The network's output and the inner layer's."""
        output = self.module(x)
        return output, self._inner.pop(_thread())


def _thread() -> int:
    return 0 if torch.compiler.is_compiling() else threading.get_ident()


def check_layer(module: nn.Module, layer: str) -> nn.Module:
    """The inner module of that name."""
    modules: dict[str, nn.Module] = dict(module.named_modules())
    if layer not in modules or not layer:
        names = ", ".join(name for name in modules if name)
        raise InputError(f"the network has no layer {layer!r}: its layers are {names}")
    return modules[layer]
