"""Folding: a batch-ensemble network as an equal network of plain per-member weights, for inference.

The network is traced (torch.fx) and rewritten node by node. Each tensor is kept in the cheapest of three layouts (see
`besnn.layers.folded`), and moved to another only where an operation needs it: the input is not repeated before the first
layer, a chain of convolutions stays packed, and what is not known to be indifferent to packing gets member-major rows.
"""

import copy
import operator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch.nn.modules.batchnorm import _BatchNorm

from besnn.errors import InputError
from besnn.layers.attention import BatchEnsembleMultiheadAttention
from besnn.layers.folded import FoldedConv, FoldedLinear, OnRows, PackedAffine
from besnn.layers.layer import BatchEnsembleLayer, members_of
from besnn.layers.linear import BatchEnsembleLinear
from besnn.layers.members import tile
from besnn.layers.norm import from_packed, to_packed
from besnn.layers.tap import Tapped, check_layer

# Operations that treat every channel alike and by itself: they don't care whether members are packed into the channels.
_CHANNELWISE_MODULES = (
    nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Mish, nn.Sigmoid, nn.Tanh, nn.Hardswish,
    nn.Hardsigmoid, nn.Softplus, nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.Upsample,
    nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d, nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d,
    nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d, nn.AdaptiveMaxPool2d,
)  # fmt: skip
_CHANNELWISE_FUNCTIONS = {
    F.relu, F.leaky_relu, F.elu, F.gelu, F.silu, F.sigmoid, F.tanh, F.softplus, F.dropout, F.interpolate,
    F.max_pool1d, F.max_pool2d, F.max_pool3d, F.avg_pool1d, F.avg_pool2d, F.avg_pool3d, F.adaptive_avg_pool2d,
    torch.relu, torch.sigmoid, torch.tanh, torch.add, torch.mul, torch.sub,
    operator.add, operator.iadd, operator.mul, operator.imul, operator.sub, operator.neg,
}  # fmt: skip
_CHANNELWISE_METHODS = {"relu", "relu_", "sigmoid", "tanh", "add", "add_", "mul", "mul_", "contiguous"}


def fold(module: nn.Module, tap: str | None = None) -> nn.Module:
    """An equal network of plain per-member weights, in evaluation mode: r, s, bias and BatchNorm are multiplied out.

    Args:
        module: a network of batch-ensemble layers; it is not changed.
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
    module = copy.deepcopy(module).eval()
    with torch.no_grad():
        try:
            graph = _Tracer().trace(module)
            tapped = _last_node_in(graph, tap) if tap is not None else None
        except Exception:  # a forward that depends on its data cannot be traced: fold each layer where it stands
            in_place = _fold_in_place(module, members)
            return _OnTiled(in_place if tap is None else Tapped(in_place, tap), members).eval()
        return _Folding(module, graph, members, tapped).run().eval()


class _Tracer(fx.Tracer):
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, BatchEnsembleLayer | BatchEnsembleMultiheadAttention | _BatchNorm) or super().is_leaf_module(
            m, module_qualified_name
        )


def _last_node_in(graph: fx.Graph, layer: str) -> fx.Node:
    """The node that computes a layer's output."""
    inside: list[fx.Node] = [node for node in graph.nodes if layer in node.meta.get("nn_module_stack", {})]
    return inside[-1]


class _OnTiled(nn.Module):
    def __init__(self, module: nn.Module, members: int) -> None:
        super().__init__()
        self.module, self.members = module, members

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        rows: Tensor | tuple[Tensor, Tensor] = self.module(tile(x, self.members))
        return rows


def _fold_in_place(module: nn.Module, members: int) -> nn.Module:
    """Replaces every batch-ensemble layer inside a module by its folded form on rows."""
    if isinstance(module, BatchEnsembleLinear):
        return FoldedLinear(module)
    if isinstance(module, BatchEnsembleLayer):
        return OnRows(FoldedConv(module), members)
    for name, child in module.named_children():
        setattr(module, name, _fold_in_place(child, members))
    return module


def _to_layout(graph: fx.Graph, node: fx.Node, have: str, want: str, members: int) -> fx.Node:
    match have, want:
        case "shared", "rows":
            return graph.call_function(tile, (node, members))
        case "shared", "packed":
            return graph.call_function(tile, (node, members, 1))
        case "packed", "rows":
            return graph.call_function(from_packed, (node, members))
        case "rows", "packed":
            return graph.call_function(to_packed, (node, members))
    return node


class _Folding:
    """One rewrite of a traced graph: for each old node, the new node and the layout its value stands in."""

    def __init__(self, module: nn.Module, graph: fx.Graph, members: int, tapped: fx.Node | None) -> None:
        self.root, self.old, self.members, self.tapped = module, graph, members, tapped
        self.modules = dict(module.named_modules())
        self.new = fx.Graph()
        self.value: dict[fx.Node, fx.Node] = {}
        self.layout: dict[fx.Node, str | None] = {}  # None: not a batch (a parameter)
        self.moved: dict[tuple[fx.Node, str], fx.Node] = {}

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
            inner = None if self.tapped is None else self.in_layout(self.tapped, "rows")
            rows = self.new.node_copy(node, lambda argument: self.in_layout(argument, "rows"))
            if inner is not None:
                rows.args = ((rows.args[0], inner),)
            return rows, "rows"
        if node.op == "call_module":
            layer = self.modules[str(node.target)]
            if isinstance(layer, BatchEnsembleLayer):
                return self.fold_layer(node, layer)
            if isinstance(layer, _BatchNorm) and layer.track_running_stats and self.layout[node.all_input_nodes[0]] == "packed":
                return self.call(node, PackedAffine(layer, self.members), "packed"), "packed"
            if isinstance(layer, nn.Flatten) and layer.start_dim == 1 and self.layout[node.all_input_nodes[0]] == "shared":
                return self.copy(node, "shared"), "shared"
            if members_of(layer) is not None:  # torch's own transformer layers, which are not traced into
                return self.call(node, _fold_in_place(layer, self.members), "rows"), "rows"
        layout = self.common_layout(node) if self.is_channelwise(node) else "rows"
        return self.copy(node, layout), layout

    def fold_layer(self, node: fx.Node, layer: BatchEnsembleLayer) -> tuple[fx.Node, str]:
        have = self.layout[node.all_input_nodes[0]]
        norm_node = self.following_norm(node)
        norm: Any = None if norm_node is None else self.modules[str(norm_node.target)]
        shared = have == "shared" and getattr(layer, "groups", 1) == 1
        if isinstance(layer, BatchEnsembleLinear):
            folded, takes, gives = FoldedLinear(layer, norm, shared), "shared" if shared else "rows", "rows"
        else:
            folded, takes, gives = FoldedConv(layer, norm, shared), "shared" if shared else "packed", "packed"  # type: ignore[assignment]
        new = self.call(node, folded, takes)
        if norm_node is not None:
            self.value[norm_node], self.layout[norm_node] = new, gives
        return new, gives

    def following_norm(self, node: fx.Node) -> fx.Node | None:
        """The BatchNorm that alone uses this layer's output, if it can be multiplied into the layer."""
        users = list(node.users)
        if len(users) == 1 and users[0].op == "call_module":
            module = self.modules[str(users[0].target)]
            calls = [n for n in self.old.nodes if n.op == "call_module" and n.target == users[0].target]
            if isinstance(module, _BatchNorm) and module.track_running_stats and len(calls) == 1:
                return users[0]
        return None

    def is_channelwise(self, node: fx.Node) -> bool:
        if any(self.layout[argument] is None for argument in node.all_input_nodes):
            return False  # a parameter broadcasts against single members' channels
        if node.op == "call_module":
            return isinstance(self.modules[str(node.target)], _CHANNELWISE_MODULES)
        return node.target in (_CHANNELWISE_METHODS if node.op == "call_method" else _CHANNELWISE_FUNCTIONS)

    def common_layout(self, node: fx.Node) -> str:
        layouts = {self.layout[argument] for argument in node.all_input_nodes}
        return "rows" if "rows" in layouts else "packed" if "packed" in layouts else "shared"

    def in_layout(self, argument: fx.Node, layout: str) -> fx.Node:
        have = self.layout[argument]
        if have is None or have == layout:
            return self.value[argument]
        if (argument, layout) not in self.moved:
            self.moved[argument, layout] = _to_layout(self.new, self.value[argument], have, layout, self.members)
        return self.moved[argument, layout]

    def copy(self, node: fx.Node, layout: str) -> fx.Node:
        return self.new.node_copy(node, lambda argument: self.in_layout(argument, layout))

    def call(self, node: fx.Node, module: nn.Module, layout: str) -> fx.Node:
        """The node's call with another module in place of its own; a module called twice gets two names."""
        name = f"{node.name}_folded"
        self.root.add_module(name, module)
        new = self.copy(node, layout)
        new.target = name
        return new
