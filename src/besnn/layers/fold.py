"""Folding: a batch-ensemble network as an equal network of plain per-member weights, for inference.

The network is traced (torch.fx) and rewritten node by node. Each tensor is kept in the cheapest of three layouts (see
`besnn.layers.folded`), and moved to another only where an operation needs it: the input is not repeated before the first
layer, a chain of convolutions stays packed, and what is not known to be indifferent to packing gets member-major rows.
"""

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn.modules.batchnorm import _BatchNorm

from besnn.errors import InputError
from besnn.layers.attention import BatchEnsembleMultiheadAttention
from besnn.layers.folded import FoldedConv, FoldedLinear, OnRows, PackedAffine
from besnn.layers.layer import BatchEnsembleLayer, members_of
from besnn.layers.linear import BatchEnsembleLinear
from besnn.layers.members import tile
from besnn.layers.norm import from_packed, to_packed
from besnn.layers.operations import flattens_rows, is_channelwise, is_rowwise, is_size, overwrites
from besnn.layers.tap import Tapped, check_layer


def fold(module: nn.Module, tap: str | None = None) -> nn.Module:
    """An equal network of plain per-member weights, in evaluation mode: r, s, bias and BatchNorm are multiplied out.

    Args:
        module: a network of batch-ensemble layers that takes one tensor; it is not changed.
        tap: the name of an inner layer, as in `named_modules`, whose output is wanted too.

    Returns:
        A module that takes the *untiled* input `[batch, ...]` and returns the same member-major rows
        `[members · batch, ...]` that `module.eval()(tile(x, members))` returns; with `tap`, these and the inner layer's.

    >>> from besnn.layers import BatchEnsembleConv2d
    >>> network = nn.Sequential(BatchEnsembleConv2d(1, 4, 3, members=3), nn.BatchNorm2d(4), nn.ReLU()).eval()
    >>> x = torch.rand(5, 1, 8, 8)
    >>> torch.allclose(fold(network)(x), network(tile(x, 3)), atol=1e-6)
    True
    """
    members = members_of(module)
    if members is None:
        raise InputError("the module has no batch-ensemble layers to fold: convert it first with besnn.layers.batch_ensemble")
    if tap is not None:
        check_layer(module, tap)
    with torch.no_grad():
        traced = _trace(_Root(copy.deepcopy(module).eval()), tap)
        if traced is None:  # then fold each layer where it stands
            in_place = _fold_in_place(copy.deepcopy(module).eval(), members)
            return _OnTiled(in_place if tap is None else Tapped(in_place, tap), members).eval()
        return _Folding(*traced, members).run().eval()


class _Root(nn.Module):
    """Calls a module with one tensor, so that tracing sees its other arguments at their defaults."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: Tensor) -> Any:
        return self.module(x)


class _OnTiled(nn.Module):
    def __init__(self, module: nn.Module, members: int) -> None:
        super().__init__()
        self.module, self.members = module, members

    def forward(self, x: Tensor) -> Any:
        return self.module(tile(x, self.members))


class _Tracer(fx.Tracer):
    """Doesn't look into batch-ensemble layers, nor into torch's own; notes every module's output by the module's name."""

    def __init__(self) -> None:
        super().__init__()
        self.outputs: dict[str, Any] = {}

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        ours = (BatchEnsembleLayer, BatchEnsembleMultiheadAttention, _BatchNorm)
        return isinstance(m, ours) or super().is_leaf_module(m, module_qualified_name)

    def call_module(self, m: nn.Module, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        output = super().call_module(m, forward, args, kwargs)
        self.outputs[self.path_of_module(m)] = output
        return output


def _trace(root: _Root, tap: str | None) -> tuple[_Root, fx.Graph, fx.Node | None] | None:
    """The root with its graph and the node of the tapped layer.

    None where the graph would not tell all: the forward depends on its data, or overwrites a tensor that is read elsewhere.
    """
    tracer = _Tracer()
    try:
        graph = tracer.trace(root)
        tapped = None if tap is None else tracer.outputs[f"module.{tap}"].node
    except Exception:  # whatever a forward does with a symbol that it takes for a tensor
        return None
    for node in graph.nodes:
        module = root.get_submodule(node.target) if node.op == "call_module" else None
        if overwrites(node, module) and (len(node.all_input_nodes[0].users) > 1 or not node.users):
            return None
    return root, graph, tapped


def _fold_in_place(module: nn.Module, members: int) -> nn.Module:
    """Replaces every batch-ensemble layer inside a module by its folded form on rows."""
    if isinstance(module, BatchEnsembleLinear):
        return FoldedLinear(module)
    if isinstance(module, BatchEnsembleLayer):
        return OnRows(FoldedConv(module), members)
    folded = {layer: _fold_in_place(layer, members) for layer in module.children()}
    for name, layer in module._modules.items():  # unlike named_children, with all names of a layer that has several
        if layer is not None:
            setattr(module, name, folded[layer])
    return module


class _Folding:
    """One rewrite of a traced graph: for each old node, the new node and the layout its value stands in."""

    def __init__(self, root: nn.Module, graph: fx.Graph, tapped: fx.Node | None, members: int) -> None:
        self.root, self.old, self.tapped, self.members = root, graph, tapped, members
        self.new = fx.Graph()
        self.value: dict[fx.Node, fx.Node] = {}
        self.layout: dict[fx.Node, str | None] = {}  # None: not a batch, but a parameter or a size
        self.channels: dict[fx.Node, int] = {}  # of one member, for packed values
        self.moved: dict[tuple[fx.Node, str, int], fx.Node] = {}

    def run(self) -> fx.GraphModule:
        for node in self.old.nodes:
            if node not in self.value:  # a BatchNorm that the layer in front took up is there already
                self.value[node], self.layout[node] = self.rewrite(node)
        folded = fx.GraphModule(self.root, self.new)
        folded.graph.eliminate_dead_code()
        folded.recompile()
        folded.delete_all_unused_submodules()
        return folded

    def rewrite(self, node: fx.Node) -> tuple[fx.Node, str | None]:
        if node.op == "placeholder":
            return self.new.node_copy(node), "shared"
        if node.op == "get_attr":
            return self.new.node_copy(node), None
        if node.op == "output":
            return self.rewrite_output(node), "rows"
        module = self.module_of(node)
        inner = [layer for layer in module.modules() if isinstance(layer, BatchEnsembleLayer)] if module is not None else []
        if module is not None and module in inner:
            return self.fold_layer(node, inner[0])
        if module is not None and inner:  # torch's own transformer layers, which are not traced into
            return self.call(node, _fold_in_place(module, self.members), "rows", inner[0].batch_dim), "rows"
        return self.rewrite_plain(node, module)

    def rewrite_output(self, node: fx.Node) -> fx.Node:
        inner = None if self.tapped is None else self.in_layout(self.tapped, "rows")
        rows = self.copy(node, "rows")
        if inner is not None:
            rows.args = ((rows.args[0], inner),)
        return rows

    def rewrite_plain(self, node: fx.Node, module: nn.Module | None) -> tuple[fx.Node, str | None]:
        """An operation without members: it stays in the layout of its arguments where it may."""
        arguments = node.all_input_nodes
        layouts = {self.layout[argument] for argument in arguments}
        if layouts == {"shared"} and flattens_rows(node, module):
            return self.new.call_function(torch.flatten, (self.value[arguments[0]], 1)), "shared"
        if layouts == {"shared"} and is_rowwise(node, module):
            return self.copy_of_shared(node, module), "shared"
        if layouts == {"packed"} and len({self.channels[argument] for argument in arguments}) == 1:
            self.channels[node] = self.channels[arguments[0]]
            if isinstance(module, _BatchNorm) and module.running_mean is not None:
                return self.call(node, PackedAffine(module, self.members), "packed"), "packed"
            if is_channelwise(node, module):
                return self.copy(node, "packed"), "packed"
        return self.copy(node, "rows"), None if layouts <= {None} or is_size(node) else "rows"

    def copy_of_shared(self, node: fx.Node, module: nn.Module | None) -> fx.Node:
        new = self.copy(node, "shared")
        if overwrites(node, module):  # the value may be the caller's input itself
            old = self.value[node.all_input_nodes[0]]
            with self.new.inserting_before(new):
                new.replace_input_with(old, self.new.call_method("clone", (old,)))
        return new

    def fold_layer(self, node: fx.Node, layer: BatchEnsembleLayer) -> tuple[fx.Node, str]:
        shared = self.layout[node.all_input_nodes[0]] == "shared"
        norm_node = self.following_norm(node, layer)
        norm: Any = None if norm_node is None else self.module_of(norm_node)
        linear = isinstance(layer, BatchEnsembleLinear)
        folded = FoldedLinear(layer, norm, shared) if linear else FoldedConv(layer, norm, shared)
        gives = "rows" if linear else "packed"
        new = self.call(node, folded, "shared" if shared else gives)
        self.channels[node] = layer.s.shape[1]
        if norm_node is not None:
            self.value[norm_node], self.layout[norm_node], self.channels[norm_node] = new, gives, layer.s.shape[1]
        return new, gives

    def following_norm(self, node: fx.Node, layer: BatchEnsembleLayer) -> fx.Node | None:
        """The BatchNorm that alone uses this layer's output, if it can be multiplied into the layer."""
        if len(node.users) > 1 or node is self.tapped:
            return None
        user = next(iter(node.users), node)
        norm = self.module_of(user)
        if not isinstance(norm, _BatchNorm) or norm.running_mean is None:
            return None
        channels = norm.num_features // getattr(norm, "members", 1)
        return user if channels == layer.s.shape[1] else None

    def module_of(self, node: fx.Node) -> nn.Module | None:
        return self.root.get_submodule(str(node.target)) if node.op == "call_module" else None

    def in_layout(self, argument: fx.Node, layout: str, batch_dim: int = 0) -> fx.Node:
        have = self.layout[argument]
        if have is None or have == layout:
            return self.value[argument]
        key = argument, layout, batch_dim
        if key not in self.moved:
            self.moved[key] = self.move(self.value[argument], have, layout, batch_dim)
        return self.moved[key]

    def move(self, value: fx.Node, have: str, want: str, batch_dim: int) -> fx.Node:
        match have, want:
            case "shared", "rows":
                return self.new.call_function(tile, (value, self.members, batch_dim))
            case "packed", "rows":
                return self.new.call_function(from_packed, (value, self.members))
            case "rows", "packed":
                return self.new.call_function(to_packed, (value, self.members))
        raise AssertionError(f"no operation needs {have} moved to {want}")

    def copy(self, node: fx.Node, layout: str, batch_dim: int = 0) -> fx.Node:
        return self.new.node_copy(node, lambda argument: self.in_layout(argument, layout, batch_dim))

    def call(self, node: fx.Node, module: nn.Module, layout: str, batch_dim: int = 0) -> fx.Node:
        """The node's call with another module in place of its own; a module called twice gets two names."""
        name = f"{node.name}_folded"
        self.root.add_module(name, module)
        new = self.copy(node, layout, batch_dim)
        new.target = name
        return new
