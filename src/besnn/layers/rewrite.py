"""The rewrite of a traced network, node by node, into plain per-member layers.

Each tensor is kept in the cheapest of three layouts (see `besnn.layers.folded`), and moved to another only where an operation
needs it: the input is not repeated before the first layer, a chain of convolutions stays packed, and what is not known to be
indifferent to packing gets member-major rows.
"""

from typing import Any

import torch
from torch import fx, nn

from besnn.layers.folded import FoldedConv, FoldedLinear, PackedAffine, fold_layers
from besnn.layers.layer import BatchEnsembleLayer
from besnn.layers.linear import BatchEnsembleLinear
from besnn.layers.members import tile
from besnn.layers.norm import from_packed, is_plain_norm, to_packed
from besnn.layers.operations import flattens_rows, is_channelwise, is_rowwise, is_size, overwrites


class Rewrite:
    """One rewrite of a traced graph: for each old node, the new node and the layout its value stands in."""

    def __init__(self, root: nn.Module, graph: fx.Graph, tapped: fx.Node | None, members: int) -> None:
        self.root, self.old, self.tapped, self.members = root, graph, tapped, members
        self.new = fx.Graph()
        self.value: dict[fx.Node, fx.Node] = {}
        self.layout: dict[fx.Node, str | None] = {}  # None: not a batch, but a parameter or a size
        self.channels: dict[fx.Node, int] = {}  # of one member, for packed values
        self.moved: dict[tuple[fx.Node, str, int], fx.Node] = {}

    def run(self) -> fx.GraphModule:
        """The network of folded layers."""
        for node in self.old.nodes:
            if node not in self.value:  # a BatchNorm that the layer in front took up is there already
                self.value[node], self.layout[node] = self._rewrite(node)
        folded = fx.GraphModule(self.root, self.new)
        folded.graph.eliminate_dead_code()
        folded.recompile()
        folded.delete_all_unused_submodules()
        return folded

    def _rewrite(self, node: fx.Node) -> tuple[fx.Node, str | None]:
        if node.op == "placeholder":
            return self.new.node_copy(node), "shared"
        if node.op == "get_attr":
            return self.new.node_copy(node), None
        if node.op == "output":
            return self._rewrite_output(node), "rows"
        module = self._module_of(node)
        if isinstance(module, BatchEnsembleLayer):
            return self._fold_layer(node, module)
        if module is not None:  # torch's own transformer layers are not traced into
            for layer in module.modules():
                if isinstance(layer, BatchEnsembleLayer):
                    return self._call(node, fold_layers(module, self.members), "rows", layer.batch_dim), "rows"
        return self._rewrite_plain(node, module)

    def _rewrite_output(self, node: fx.Node) -> fx.Node:
        inner = None if self.tapped is None else self._in_layout(self.tapped, "rows")
        rows = self._copy(node, "rows")
        if inner is not None:
            rows.args = ((rows.args[0], inner),)
        return rows

    def _rewrite_plain(self, node: fx.Node, module: nn.Module | None) -> tuple[fx.Node, str | None]:
        """An operation without members: it stays in the layout of its arguments where it may."""
        arguments = node.all_input_nodes
        layouts = {self.layout[argument] for argument in arguments}
        if flattens_rows(node, module) and self.layout[arguments[0]] == "shared":
            return self.new.call_function(torch.flatten, (self.value[arguments[0]], 1)), "shared"
        if layouts == {"shared"} and is_rowwise(node, module):
            return self._copy_of_shared(node, module), "shared"
        if layouts == {"packed"} and len({self.channels[argument] for argument in arguments}) == 1:
            self.channels[node] = self.channels[arguments[0]]
            if is_plain_norm(module) and module.running_mean is not None:
                return self._call(node, PackedAffine(module, self.members), "packed"), "packed"
            if is_channelwise(node, module):
                return self._copy(node, "packed"), "packed"
        return self._copy(node, "rows"), None if layouts <= {None} or is_size(node) else "rows"

    def _copy_of_shared(self, node: fx.Node, module: nn.Module | None) -> fx.Node:
        new = self._copy(node, "shared")
        if overwrites(node, module):  # the value may be the caller's input itself
            old = self.value[node.all_input_nodes[0]]
            with self.new.inserting_before(new):
                new.replace_input_with(old, self.new.call_method("clone", (old,)))
        return new

    def _fold_layer(self, node: fx.Node, layer: BatchEnsembleLayer) -> tuple[fx.Node, str]:
        shared = self.layout[node.all_input_nodes[0]] == "shared"
        norm_node = self._following_norm(node, layer)
        norm: Any = None if norm_node is None else self._module_of(norm_node)
        linear = isinstance(layer, BatchEnsembleLinear)
        folded = FoldedLinear(layer, norm, shared) if linear else FoldedConv(layer, norm, shared)
        gives = "rows" if linear else "packed"
        new = self._call(node, folded, "shared" if shared else gives)
        self.channels[node] = layer.s.shape[1]
        if norm_node is not None:
            self.value[norm_node], self.layout[norm_node], self.channels[norm_node] = new, gives, layer.s.shape[1]
        return new, gives

    def _following_norm(self, node: fx.Node, layer: BatchEnsembleLayer) -> fx.Node | None:
        """The BatchNorm that alone uses this layer's output, if it can be multiplied into the layer."""
        if len(node.users) > 1 or node is self.tapped:
            return None
        user = next(iter(node.users), node)
        norm = self._module_of(user)
        if not is_plain_norm(norm) or norm.running_mean is None:
            return None
        channels = norm.num_features // getattr(norm, "members", 1)
        return user if channels == layer.s.shape[1] else None

    def _module_of(self, node: fx.Node) -> nn.Module | None:
        return self.root.get_submodule(str(node.target)) if node.op == "call_module" else None

    def _in_layout(self, argument: fx.Node, layout: str, batch_dim: int = 0) -> fx.Node:
        have = self.layout[argument]
        if have is None or have == layout:
            return self.value[argument]
        key = argument, layout, batch_dim
        if key not in self.moved:
            self.moved[key] = self._move(self.value[argument], have, layout, batch_dim)
        return self.moved[key]

    def _move(self, value: fx.Node, have: str, want: str, batch_dim: int) -> fx.Node:
        match have, want:
            case "shared", "rows":
                return self.new.call_function(tile, (value, self.members, batch_dim))
            case "packed", "rows":
                return self.new.call_function(from_packed, (value, self.members))
            case "rows", "packed":
                return self.new.call_function(to_packed, (value, self.members))
        raise AssertionError(f"no operation needs {have} moved to {want}")

    def _copy(self, node: fx.Node, layout: str, batch_dim: int = 0) -> fx.Node:
        return self.new.node_copy(node, lambda argument: self._in_layout(argument, layout, batch_dim))

    def _call(self, node: fx.Node, module: nn.Module, layout: str, batch_dim: int = 0) -> fx.Node:
        """The node's call with another module in place of its own; a module called twice gets two names."""
        name = f"{node.name}_folded"
        self.root.add_module(name, module)
        new = self._copy(node, layout, batch_dim)
        new.target = name
        return new
