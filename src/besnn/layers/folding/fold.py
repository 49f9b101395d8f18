"""Folding: a batch-ensemble network as an equal network of plain per-member weights, for inference.

The network is traced (torch.fx) and its graph rewritten, see `besnn.layers.folding.rewrite`; where that cannot be, each layer is folded
where it stands.
"""

import copy
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn

from besnn.errors import InputError
from besnn.layers.attention import BatchEnsembleMultiheadAttention
from besnn.layers.folding.folded_layers import fold_layers
from besnn.layers.folding.operations import may_share_memory, overwrites
from besnn.layers.folding.rewrite import Rewrite
from besnn.layers.folding.tap import Tapped, check_layer
from besnn.layers.layer import BatchEnsembleLayer, members_of
from besnn.layers.members import tile
from besnn.layers.norm import is_plain_norm


def fold(module: nn.Module, *taps: str, grouped: bool = False, mirror: bool = False) -> nn.Module:
    """An equal network of plain per-member weights, in evaluation mode: r, s, bias and BatchNorm are multiplied out.

    Args:
        module: a network of batch-ensemble layers that takes one tensor; it is not changed.
        taps: names of inner layers, as in `named_modules`, whose outputs are wanted too.
        grouped: run the members' convolutions as one grouped convolution in place of one for each member. That is fewer
            launches, which pays on a GPU for a few inputs at a time, and slower otherwise.
        mirror: tile the input with mirror images for every second member, see `besnn.layers.tile`.

    Returns:
        A module that takes the *untiled* input `[batch, ...]` and returns the same member-major rows
        `[members · batch, ...]` that `module.eval()(tile(x, members, mirror=mirror))` returns; with `taps`, a
        tuple of these and each inner layer's.

    >>> from besnn.layers import BatchEnsembleConv2d
    >>> network = nn.Sequential(BatchEnsembleConv2d(1, 4, 3, members=3), nn.BatchNorm2d(4), nn.ReLU()).eval()
    >>> x = torch.rand(5, 1, 8, 8)
    >>> torch.allclose(fold(network)(x), network(tile(x, 3)), atol=1e-6)
    True
    """
    members = members_of(module)
    if members is None:
        raise InputError("the module has no batch-ensemble layers to fold: convert it first with besnn.layers.batch_ensemble")
    for tap in taps:
        check_layer(module, tap)
    with torch.no_grad():
        traced = _trace(_Root(copy.deepcopy(module).eval()), taps)
        if traced is None:  # then fold each layer where it stands
            in_place = fold_layers(copy.deepcopy(module).eval(), members)
            return _OnTiled(Tapped(in_place, *taps) if taps else in_place, members, mirror).eval()
        return Rewrite(*traced, members, grouped, mirror).run().eval()


class _Root(nn.Module):
    """Calls a module with one tensor, so that tracing sees its other arguments at their defaults."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: Tensor) -> Any:
        return self.module(x)


class _OnTiled(nn.Module):
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
    """Notes `x += y` as what it is; torch.fx takes it for `x = x + y`, though another name of x sees the change too."""

    __iadd__, __isub__ = _in_place(operator.iadd), _in_place(operator.isub)
    __imul__, __itruediv__ = _in_place(operator.imul), _in_place(operator.itruediv)


class _Tracer(fx.Tracer):
    """Doesn't look into batch-ensemble layers, nor into torch's own; notes every module's output by the module's name."""

    def __init__(self) -> None:
        super().__init__()
        self.outputs: dict[str, Any] = {}

    def proxy(self, node: fx.Node) -> fx.Proxy:
        return _Proxy(node, self)

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        ours = isinstance(m, BatchEnsembleLayer | BatchEnsembleMultiheadAttention) or is_plain_norm(m)
        return ours or super().is_leaf_module(m, module_qualified_name)

    def call_module(self, m: nn.Module, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        output = super().call_module(m, forward, args, kwargs)
        self.outputs[self.path_of_module(m)] = output
        return output


def _trace(root: _Root, taps: Sequence[str]) -> tuple[_Root, fx.Graph, list[fx.Node]] | None:
    """The root with its graph and the nodes of the tapped layers.

    None where the graph would not tell all: the forward depends on its data, or reads a tensor that it has overwritten.
    """
    tracer = _Tracer()
    try:
        graph = tracer.trace(root)
        tapped = [tracer.outputs[f"module.{tap}"].node for tap in taps]
    except Exception:  # whatever a forward does with a symbol that it takes for a tensor
        return None
    memory = _Memory()
    for node in graph.nodes:
        if any(map(memory.is_stale, node.all_input_nodes)):
            return None
        memory.note(node, root.get_submodule(node.target) if node.op == "call_module" else None)
    return None if any(map(memory.is_stale, tapped)) else (root, graph, tapped)


class _Memory:
    """Which results of a graph share memory, and which of them an operation in place has changed since."""

    def __init__(self) -> None:
        self.owners: dict[fx.Node, fx.Node] = {}  # the operation that made the memory in which a result lies
        self.written: dict[fx.Node, fx.Node] = {}  # the last operation that wrote there when a result was made
        self.last: dict[fx.Node, fx.Node] = {}  # the last one by now, by owner

    def note(self, node: fx.Node, module: nn.Module | None) -> None:
        """Takes the next operation of the graph."""
        changes = overwrites(node, module)
        shares = node.all_input_nodes and (changes or may_share_memory(node, module))
        owner = self.owners[node.all_input_nodes[0]] if shares else node
        if changes or owner is node:
            self.last[owner] = node
        self.owners[node], self.written[node] = owner, self.last[owner]

    def is_stale(self, node: fx.Node) -> bool:
        """Whether the memory of a result was written to after it."""
        return self.written[node] is not self.last[self.owners[node]]
