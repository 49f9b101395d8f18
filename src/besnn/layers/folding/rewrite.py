"""The rewrite of a traced network, node by node, into plain layers per member.

Each tensor is kept in the cheapest of three layouts (see `besnn.layers.folding.folded_layers`) and moved to another only where
an operation needs it: the input is not repeated before the first layer, a chain of convolutions keeps members apart, and
operations that are not known to treat each row by itself get member-major rows.
"""

import itertools
import operator
from collections.abc import Sequence
from typing import Any, TypeAlias

import torch
from torch import fx, nn
from torch.nn.modules.batchnorm import _BatchNorm

from besnn.layers.folding.folded_layers import FoldedLinear, fold_layers, member_affines, member_convolutions
from besnn.layers.folding.operations import is_rowwise, is_size, is_view, overwrites
from besnn.layers.layer import BatchEnsembleLayer, BatchEnsembleLinear
from besnn.layers.members import split_members, tile
from besnn.layers.norm import MemberBatchNorm, is_plain_norm

Value: TypeAlias = tuple[fx.Node, ...]


class Rewrite:
    """One rewrite of a traced graph: for each old node, its value in the new graph and the value's layout.

    A value is one new node, or in the layout `apart` one per member. Folded layers are added to `root`, the traced module. The
    values of the nodes `outputs` are returned besides the output.
    """

    def __init__(self, root: nn.Module, graph: fx.Graph, outputs: Sequence[fx.Node], members: int, mirror: bool) -> None:
        self.root, self.old, self.outputs, self.members, self.mirror = root, graph, outputs, members, mirror
        self.new = fx.Graph()
        self.value: dict[fx.Node, Value] = {}
        self.layout: dict[fx.Node, str | None] = {}  # None: not a batch, but a parameter or a size
        self.moved: dict[tuple[fx.Node, str, int], Value] = {}

    def run(self) -> fx.GraphModule:
        """Return the network of folded layers."""
        for node in self.old.nodes:
            if node not in self.value:  # a BatchNorm folded into the layer before it has its value already
                self.value[node], self.layout[node] = self._rewrite(node)
        self._order_by_member()
        folded = fx.GraphModule(self.root, self.new)
        folded.graph.eliminate_dead_code()
        folded.recompile()
        folded.delete_all_unused_submodules()
        return folded

    def _order_by_member(self) -> None:
        """Put each member's operations together, so that what one writes is read while it is in the cache."""
        runs = itertools.groupby(list(self.new.nodes), key=lambda node: "member" in node.meta)
        for nodes in (list(run) for apart, run in runs if apart):
            behind = nodes[-1].next
            for node in sorted(nodes, key=lambda node: int(node.meta["member"])):
                behind.prepend(node)

    def _rewrite(self, node: fx.Node) -> tuple[Value, str | None]:
        if node.op == "placeholder":
            new = self.new.node_copy(node)
            if self.mirror:
                return (self.new.call_function(tile, (new, self.members), {"mirror": True}),), "rows"
            return (new,), "shared"
        if node.op == "get_attr":
            return (self.new.node_copy(node),), None
        if node.op == "output":
            return self._rewrite_output(node), "rows"
        module = self._module_of(node)
        if isinstance(module, BatchEnsembleLayer):
            return self._fold_layer(node, module)
        if module is not None:  # torch's own transformer layers are not traced into
            for layer in module.modules():
                if isinstance(layer, BatchEnsembleLayer):
                    return self._call(node, [fold_layers(module)], "rows", layer.batch_dim), "rows"
        return self._rewrite_plain(node, module)

    def _rewrite_output(self, node: fx.Node) -> Value:
        others = [value for output in self.outputs for value in self._in_layout(output, "rows")]
        (rows,) = self._copy(node, "rows")
        if others:
            rows.args = ((rows.args[0], *others),)
        return (rows,)

    def _rewrite_plain(self, node: fx.Node, module: nn.Module | None) -> tuple[Value, str | None]:
        """Rewrite an operation without members, in the layout of its arguments where possible."""
        layouts = {self.layout[argument] for argument in node.all_input_nodes}
        if layouts == {"shared"} and is_rowwise(node, module):
            return self._copy_of_shared(node, module), "shared"
        if self._stays_apart(node, module):
            if isinstance(module, MemberBatchNorm):
                return self._call(node, member_affines(module, self.members), "apart"), "apart"
            return self._copy(node, "apart"), "apart"
        return self._copy(node, "rows"), None if layouts <= {None} or is_size(node) else "rows"

    def _stays_apart(self, node: fx.Node, module: nn.Module | None) -> bool:
        """Return whether an operation can run on each member's rows by themselves."""
        layouts = [self.layout[argument] for argument in node.all_input_nodes]
        if "apart" not in layouts or not {*layouts} <= {"apart", "shared"}:
            return False
        if overwrites(node, module) and layouts[0] == "shared":  # each member needs its own copy to overwrite
            return False
        if isinstance(module, _BatchNorm) and module.running_mean is None:  # it normalises over all members' rows at once
            return False
        return is_rowwise(node, module) or (isinstance(module, MemberBatchNorm) and is_plain_norm(module))

    def _copy_of_shared(self, node: fx.Node, module: nn.Module | None) -> Value:
        (new,) = self._copy(node, "shared")
        if overwrites(node, module):  # the value may be the caller's input itself
            (old,) = self.value[node.all_input_nodes[0]]
            with self.new.inserting_before(new):
                new.replace_input_with(old, self.new.call_method("clone", (old,)))
        return (new,)

    def _fold_layer(self, node: fx.Node, layer: BatchEnsembleLayer) -> tuple[Value, str]:
        norm_node = self._following_norm(node, layer)
        norm: Any = None if norm_node is None else self._module_of(norm_node)
        if isinstance(layer, BatchEnsembleLinear):
            shared = self.layout[node.all_input_nodes[0]] == "shared"
            value = self._call(node, [FoldedLinear(layer, norm, shared)], "shared" if shared else "rows")
            layout = "rows"
        else:
            value, layout = self._call(node, member_convolutions(layer, norm), "apart"), "apart"
        if norm_node is not None:
            self.value[norm_node], self.layout[norm_node] = value, layout
        return value, layout

    def _following_norm(self, node: fx.Node, layer: BatchEnsembleLayer) -> fx.Node | None:
        """Return the BatchNorm that is the only user of this layer's output, if it can be multiplied into the layer."""
        if len(node.users) > 1 or node in self.outputs:
            return None
        user = next(iter(node.users), node)
        norm = self._module_of(user)
        if not is_plain_norm(norm) or norm.running_mean is None:
            return None
        channels = norm.num_features // getattr(norm, "members", 1)
        return user if channels == layer.s.shape[1] else None

    def _module_of(self, node: fx.Node) -> nn.Module | None:
        return self.root.get_submodule(str(node.target)) if node.op == "call_module" else None

    def _in_layout(self, argument: fx.Node, layout: str, batch_dim: int = 0) -> Value:
        have = self.layout[argument]
        if have is None or have == layout:
            return self.value[argument]
        key = argument, layout, batch_dim
        if key not in self.moved:
            self.moved[key] = self._move(self.value[argument], have, layout, batch_dim)
        return self.moved[key]

    def _move(self, value: Value, have: str, want: str, batch_dim: int) -> Value:
        match have, want:
            case "shared", "apart":
                return value
            case "shared", "rows":
                return (self.new.call_function(tile, (*value, self.members, batch_dim)),)
            case "apart", "rows":
                return (self.new.call_function(torch.cat, (list(value),)),)
            case "rows", "apart":
                split = self.new.call_function(split_members, (*value, self.members))
                return tuple(self.new.call_function(operator.getitem, (split, member)) for member in range(self.members))
        raise AssertionError(f"no operation needs {have} moved to {want}")

    def _copy(self, node: fx.Node, layout: str, batch_dim: int = 0) -> Value:
        def of_member(member: int) -> fx.Node:
            def argument(old: fx.Node) -> fx.Node:
                value = self._in_layout(old, layout, batch_dim)
                return value[member % len(value)]  # one per member, or the same for all

            new = self.new.node_copy(node, argument)
            if is_view(new):
                new.target = "reshape"  # the caller's memory format may differ from training's
            if layout == "apart":
                new.meta["member"] = member  # for `MemberStreams`
            return new

        return tuple(of_member(member) for member in range(self.members if layout == "apart" else 1))

    def _call(self, node: fx.Node, modules: Sequence[nn.Module], layout: str, batch_dim: int = 0) -> Value:
        """Copy a node's call with other modules; a module called twice gets two names."""
        new = self._copy(node, layout, batch_dim)
        for call, module in zip(new, modules, strict=True):
            call.target = f"{call.name}_folded"
            self.root.add_module(call.target, module)
        return new
