"""Folding: a batch ensemble as an equal network of plain weights per member, for inference.

The network is traced (torch.fx) and its graph rewritten, see `besnn.layers.folding.rewrite`. If it cannot be traced, each layer
is folded where it stands.
"""

import copy
import operator
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, fx, nn
from torch.utils.hooks import RemovableHandle

from besnn.errors import InputError
from besnn.layers.attention import BatchEnsembleMultiheadAttention
from besnn.layers.embedding import PiecewiseLinear
from besnn.layers.folding.folded_layers import fold_layers
from besnn.layers.folding.operations import may_share_memory, overwrites
from besnn.layers.folding.rewrite import Rewrite
from besnn.layers.layer import BatchEnsembleLayer, members_of
from besnn.layers.members import tile
from besnn.layers.norm import is_plain_norm


def fold(module: nn.Module, *layers: str, mirror: bool = False) -> nn.Module:
    """Return an equal network of plain weights per member, in evaluation mode: r, s, bias and BatchNorm are multiplied out.

    It takes the *untiled* input `[batch, ...]` and returns the same member-major rows `[members · batch, ...]` as
    `module.eval()(tile(x, members, mirror=mirror))`. With `layers`, names as in `named_modules`, it returns a tuple of these
    and the rows of each layer. The module itself, which must take one tensor, is not changed.

    >>> from besnn.layers import BatchEnsembleConv2d
    >>> network = nn.Sequential(BatchEnsembleConv2d(1, 4, 3, members=3), nn.BatchNorm2d(4), nn.ReLU()).eval()
    >>> x = torch.rand(5, 1, 8, 8)
    >>> torch.allclose(fold(network)(x), network(tile(x, 3)), atol=1e-6)
    True
    """
    members = members_of(module)
    if members is None:
        raise InputError("the module has no batch-ensemble layers to fold: convert it first with besnn.layers.batch_ensemble")
    for layer in layers:
        find_layer(module, layer)
    with torch.no_grad():
        traced = _trace(_Root(copy.deepcopy(module).eval()), layers)
        if traced is None:
            in_place = fold_layers(copy.deepcopy(module).eval())
            return _Tiled(WithLayerOutputs(in_place, *layers) if layers else in_place, members, mirror).eval()
        return Rewrite(*traced, members, mirror).run().eval()


INPUT = ":input"
"""Behind the name of a layer: what goes into it, not what comes out."""


_HOOKS: "WeakKeyDictionary[WithLayerOutputs, list[RemovableHandle]]" = WeakKeyDictionary()
"""Not attributes: a copy of a network, which has copies of the hooks, cannot copy what would remove them."""


class WithLayerOutputs(nn.Module):
    """A network that returns a tuple: its output, and the outputs of the named layers; `fc:input` is what goes into `fc`.

    The network itself is neither copied nor changed, except for hooks, which do nothing while others run it. A layer that
    returns several values gives its first one.
    """

    def __init__(self, module: nn.Module, *layers: str) -> None:
        super().__init__()
        self.module, self.layers = module, layers
        self._outputs: dict[int, dict[str, Tensor]] = {}  # by thread: several may run the network at once
        _HOOKS[self] = [self._hook(layer) for layer in layers]

    def _hook(self, layer: str) -> RemovableHandle:
        found = find_layer(self.module, layer)
        if layer.endswith(INPUT):
            return found.register_forward_pre_hook(partial(self._keep_input, layer), with_kwargs=True)
        return found.register_forward_hook(partial(self._keep, layer))

    def remove_hooks(self) -> None:
        """Leave the network as it was; this object cannot be used afterwards."""
        for hook in _HOOKS.pop(self, ()):
            hook.remove()

    def _keep(self, layer: str, module: nn.Module, arguments: Any, output: Any) -> None:
        if (outputs := self._outputs.get(_thread())) is not None:
            outputs[layer] = first_tensor(output)

    def _keep_input(self, layer: str, module: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        self._keep(layer, module, None, (*arguments, *keywords.values()))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """Return the network's output and the layers'."""
        self._outputs[_thread()] = {}
        try:
            output = self.module(x)
        finally:
            by_layer = self._outputs.pop(_thread())
        return output, *(by_layer[layer] for layer in self.layers)


def first_tensor(output: Any) -> Any:
    """Return the first value of an output that is a tuple, a list or a mapping, as deep as they are nested."""
    while isinstance(output, tuple | list | dict) and output:
        output = next(iter(output.values() if isinstance(output, dict) else output))
    return output


def _thread() -> int:
    return 0 if torch.compiler.is_compiling() else threading.get_ident()


def find_layer(module: nn.Module, layer: str) -> nn.Module:
    """Return the layer of that name, as in `named_modules`, with or without `:input` behind it."""
    modules: dict[str, nn.Module] = dict(module.named_modules())
    name = layer.removesuffix(INPUT)
    if name not in modules or not name:
        names = ", ".join(name for name in modules if name)
        raise InputError(f"the network has no layer {layer!r}: its layers are {names}")
    return modules[name]


class _Root(nn.Module):
    """Calls a module with one tensor, so that tracing sees its other arguments at their defaults."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: Tensor) -> Any:
        return self.module(x)


class _Tiled(nn.Module):
    """Tiles the input of a module."""

    def __init__(self, module: nn.Module, members: int, mirror: bool) -> None:
        super().__init__()
        self.module, self.members, self.mirror = module, members, mirror

    def forward(self, x: Tensor) -> Any:
        return self.module(tile(x, self.members, mirror=self.mirror))


def _in_place(operation: Callable[..., Any]) -> Callable[[fx.Proxy, Any], fx.Proxy]:
    def method(self: fx.Proxy, other: Any) -> fx.Proxy:
        return self.tracer.create_proxy("call_function", operation, (self, other), {})

    return method


class _Proxy(fx.Proxy):
    """Records `x += y` as what it is; torch.fx records `x = x + y`, although other names of x see the change too."""

    __iadd__, __isub__ = _in_place(operator.iadd), _in_place(operator.isub)
    __imul__, __itruediv__ = _in_place(operator.imul), _in_place(operator.itruediv)


class _Tracer(fx.Tracer):
    """Does not trace into batch-ensemble layers or torch's own; keeps every module's output by the module's name."""

    def __init__(self) -> None:
        super().__init__()
        self.outputs: dict[str, Any] = {}

    def proxy(self, node: fx.Node) -> fx.Proxy:
        return _Proxy(node, self)

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        ours = isinstance(m, BatchEnsembleLayer | BatchEnsembleMultiheadAttention | PiecewiseLinear) or is_plain_norm(m)
        return ours or super().is_leaf_module(m, module_qualified_name)

    def call_module(self, m: nn.Module, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        output = super().call_module(m, forward, args, kwargs)
        self.outputs[self.path_of_module(m)] = output
        return output


def _trace(root: _Root, layers: Sequence[str]) -> tuple[_Root, fx.Graph, list[fx.Node]] | None:
    """Return the root with its graph and the nodes of the layers.

    None if the graph would be wrong: the forward pass depends on its data, or reads a tensor that it has overwritten.
    """
    tracer = _Tracer()
    try:
        graph = tracer.trace(root)
        outputs = [tracer.outputs[f"module.{layer}"].node for layer in layers]
    except Exception:  # whatever a forward pass does with a symbol instead of a tensor
        return None
    memory = _Memory()
    for node in graph.nodes:
        if any(map(memory.is_stale, node.all_input_nodes)):
            return None
        memory.add(node, root.get_submodule(node.target) if node.op == "call_module" else None)
    return None if any(map(memory.is_stale, outputs)) else (root, graph, outputs)


class _Memory:
    """Which results of a graph share memory, and which of them an in-place operation has changed since."""

    def __init__(self) -> None:
        self.owners: dict[fx.Node, fx.Node] = {}  # the operation that allocated a result's memory
        self.written: dict[fx.Node, fx.Node] = {}  # the last operation that wrote there when the result was made
        self.last: dict[fx.Node, fx.Node] = {}  # the last one by now, by owner

    def add(self, node: fx.Node, module: nn.Module | None) -> None:
        """Add the next operation of the graph."""
        changes = overwrites(node, module)
        shares = node.all_input_nodes and (changes or may_share_memory(node, module))
        owner = self.owners[node.all_input_nodes[0]] if shares else node
        if changes or owner is node:
            self.last[owner] = node
        self.owners[node], self.written[node] = owner, self.last[owner]

    def is_stale(self, node: fx.Node) -> bool:
        """Return whether a result's memory was written to after it was made."""
        return self.written[node] is not self.last[self.owners[node]]
