"""Folded networks with operations fused into fewer passes over memory and, on a GPU, members on streams of their own."""

import copy
import operator
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from besnn.layers.folding.folded_layers import FoldedLinear
from besnn.layers.members import split_members

SMALL_FILTER = 64
"""Weights of a filter so small that cuDNN, which is made for many input channels, wastes most of its time on it."""
FEW_ROWS = 64
"""With fewer rows per member, one product for all members has less overhead than one per member."""
_OUTPUTS = (16, 32, 64, 128, 256)
_RELU = (torch.relu, F.relu, "relu", "relu_")


def fuse(folded: fx.GraphModule) -> fx.GraphModule:
    """Fuse, in place, convolutions with their ReLU, and the members' first convolution, ReLU and pooling with each other."""
    _join_activations(folded)
    _join_first_blocks(folded)
    folded.graph.lint()
    folded.recompile()
    folded.delete_all_unused_submodules()
    return folded


def fuse_for_cpu(folded: fx.GraphModule) -> fx.GraphModule:
    """Fuse, in place, convolutions and products with their ReLU, with weights in the layout that oneDNN reads fastest."""
    _join_activations(folded)
    _join_products(folded)
    for module in folded.modules():
        if isinstance(module, ConvReLU):
            module.pack()
    folded.recompile()
    return folded


class ConvReLU(nn.Module):
    """A convolution and ReLU; on a GPU one call of cuDNN, on a CPU one of oneDNN once its weight is packed."""

    def __init__(self, conv: nn.Conv2d) -> None:
        super().__init__()
        self.conv = conv
        self.packed: Tensor | None = None

    def pack(self) -> None:
        """Lay out the weight once, as oneDNN would otherwise do for every call."""
        conv = self.conv
        if not isinstance(conv.padding, str):
            padding, stride, dilation = list(conv.padding), list(conv.stride), list(conv.dilation)
            weight = conv.weight.detach().to_mkldnn()
            self.packed = torch._C._nn.mkldnn_reorder_conv2d_weight(weight, padding, stride, dilation, conv.groups)

    def __deepcopy__(self, memo: dict[int, Any]) -> "ConvReLU":
        """Copy the convolution and pack it anew: torch does not copy packed weights."""
        copied = ConvReLU(copy.deepcopy(self.conv, memo))
        if self.packed is not None:
            copied.pack()
        return copied

    def forward(self, x: Tensor) -> Tensor:
        """Map `[batch, in, h, w]` to `[batch, out, h', w']`."""
        conv = self.conv
        if self.packed is not None:
            geometry = conv.padding, conv.stride, conv.dilation, conv.groups
            fused: Tensor = torch.ops.mkldnn._convolution_pointwise(x, self.packed, conv.bias, *geometry, "relu", [], "")
            return fused
        if not x.is_cuda or isinstance(conv.padding, str):
            return torch.relu(conv(x))
        geometry = conv.stride, conv.padding, conv.dilation, conv.groups
        return torch.cudnn_convolution_relu(x.to(conv.weight.dtype), conv.weight, conv.bias, *geometry)


class MemberProducts(nn.Module):
    """Matrix products and ReLUs that follow each other, `rows → rows`, on a CPU: one member after the other by oneDNN.

    What one layer writes is still in the processor's cache when the next reads it.
    """

    def __init__(self, layers: Sequence[tuple[FoldedLinear, bool]]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layer for layer, _ in layers)
        self.activations = ["relu" if relu else "none" for _, relu in layers]
        self.members = layers[0][0].members
        # torch does not copy packed weights, so they are not attributes of the layers, and a copy packs its own
        self._packed = [list(map(_packed_product, layer.weight, _biases(layer))) for layer, _ in layers]

    def __deepcopy__(self, memo: dict[int, Any]) -> "MemberProducts":
        """Copy the layers and pack them anew."""
        layers: list[Any] = [copy.deepcopy(layer, memo) for layer in self.layers]
        return MemberProducts(list(zip(layers, [name == "relu" for name in self.activations], strict=True)))

    def forward(self, x: Tensor) -> Tensor:
        """Map what the first layer takes to what the last one returns."""
        by_member = [x] * self.members if self.layers[0].shared_input else list(split_members(x, self.members))
        if x.ndim == 2 and len(by_member[0]) >= FEW_ROWS:
            return torch.cat([self._of_member(member, rows) for member, rows in enumerate(by_member)])
        for layer, activation in zip(self.layers, self.activations, strict=True):
            x = torch.relu(layer(x)) if activation == "relu" else layer(x)
        return x

    def _of_member(self, member: int, rows: Tensor) -> Tensor:
        for packed, activation in zip(self._packed, self.activations, strict=True):
            rows = torch.ops.mkldnn._linear_pointwise(rows, *packed[member], activation, [], "")
        return rows


def _packed_product(weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Return a weight `[in, out]`, laid out once as oneDNN would otherwise do for every call, and its bias."""
    return torch.ops.mkldnn._reorder_linear_weight(weight.t().contiguous()), bias


def _biases(layer: FoldedLinear) -> Sequence[Tensor | None]:
    return [None] * layer.members if layer.bias is None else list(layer.bias[:, 0])


class Pool(nn.Module):
    """2×2 max-pooling that does not keep the indices of the maxima; on a GPU a kernel."""

    def forward(self, x: Tensor) -> Tensor:
        """Map `[batch, channels, h, w]` to `[batch, channels, h / 2, w / 2]`."""
        if x.is_cuda and x.is_contiguous(memory_format=torch.channels_last):
            from besnn.layers.gpu.kernels import max_pool

            return max_pool(x)
        height, width = (size // 2 * 2 for size in x.shape[-2:])
        columns = torch.maximum(x[..., 0:width:2], x[..., 1:width:2])
        return torch.maximum(columns[..., 0:height:2, :], columns[..., 1:height:2, :])


class FirstBlock(nn.Module):
    """All members' first convolution, ReLU and 2×2 max-pooling of the same few channels; on a GPU one kernel."""

    filters: Tensor
    bias: Tensor

    def __init__(self, convs: Sequence[nn.Conv2d]) -> None:
        super().__init__()
        self.convs = nn.ModuleList(convs)
        size = convs[0].weight[0].numel()
        depth = max(16, 2 ** (size - 1).bit_length())  # what a matrix unit takes
        filters = [F.pad(conv.weight.detach().flatten(1).t(), (0, 0, 0, depth - size)) for conv in convs]
        biases = [conv.weight.new_zeros(conv.out_channels) if conv.bias is None else conv.bias.detach() for conv in convs]
        self.register_buffer("filters", torch.stack(filters).contiguous())  # [members, depth, out]
        self.register_buffer("bias", torch.stack(biases).float())
        self.kernel, self.padding = int(convs[0].kernel_size[0]), int(convs[0].padding[0])

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """Map `[batch, in, h, w]` to `[batch, out, h', w']` of each member."""
        if x.is_cuda:
            from besnn.layers.gpu.kernels import first_block

            x = x.to(self.filters.dtype).contiguous()
            return first_block(x, self.filters, self.bias, self.kernel, self.padding).unbind()
        return tuple(F.max_pool2d(torch.relu(conv(x)), 2) for conv in self.convs)


def _join_activations(folded: fx.GraphModule) -> None:
    for node in list(folded.graph.nodes):
        conv, relu = _module(folded, node), _only_user(node)
        if type(conv) is nn.Conv2d and conv.padding_mode == "zeros" and relu is not None and _is_relu(folded, relu):
            _set_module(folded, node, ConvReLU(conv))
            relu.replace_all_uses_with(node)
            folded.graph.erase_node(relu)
        elif _is_pool(conv):
            _set_module(folded, node, Pool())


def _join_products(folded: fx.GraphModule) -> None:
    joined: set[fx.Node] = set()
    for node in list(folded.graph.nodes):
        layers, nodes = _products_from(folded, node)
        if not layers or node in joined:
            continue
        joined.update(nodes)
        if len(nodes) > 1:
            nodes[-1].replace_all_uses_with(node)
        for other in reversed(nodes[1:]):
            folded.graph.erase_node(other)
        _set_module(folded, node, MemberProducts(layers))


def _products_from(folded: fx.GraphModule, node: fx.Node) -> tuple[list[tuple[FoldedLinear, bool]], list[fx.Node]]:
    """Return the products that follow each other from a node on, each with whether a ReLU follows it, and all their nodes."""
    layers: list[tuple[FoldedLinear, bool]] = []
    nodes: list[fx.Node] = []
    following: fx.Node | None = node
    while following is not None:
        layer, relu = _module(folded, following), _only_user(following)
        if not isinstance(layer, FoldedLinear) or layer.batch_dim != 0 or (layers and layer.shared_input):
            break
        has_relu = relu is not None and _is_relu(folded, relu)
        nodes += [following, relu] if relu is not None and has_relu else [following]
        layers.append((layer, has_relu))
        following = _only_user(nodes[-1])
    return layers, nodes


def _join_first_blocks(folded: fx.GraphModule) -> None:
    """Join the members' convolutions of the same input, alike but for their weights, that are each pooled."""
    alike: dict[Any, list[fx.Node]] = defaultdict(list)
    for node in folded.graph.nodes:
        block, pool = _module(folded, node), _only_user(node)
        pooled = pool is not None and isinstance(_module(folded, pool), Pool)
        if isinstance(block, ConvReLU) and pooled and _is_small(block.conv):
            alike[node.args[0], block.conv.weight.shape, block.conv.padding].append(node)
    for nodes in alike.values():
        joined = FirstBlock([folded.get_submodule(str(node.target)).get_submodule("conv") for node in nodes])  # type: ignore[misc]  # all are convolutions
        name = f"{nodes[0].name}_block"
        folded.add_module(name, joined)
        with folded.graph.inserting_before(nodes[0]):
            call = folded.graph.call_module(name, (nodes[0].args[0],))
            outputs = [folded.graph.call_function(operator.getitem, (call, member)) for member in range(len(nodes))]
        for node, output in zip(nodes, outputs, strict=True):
            output.meta.update(node.meta)
            pool = _only_user(node)
            assert pool is not None
            pool.replace_all_uses_with(output)
            folded.graph.erase_node(pool)
            folded.graph.erase_node(node)


def _is_small(conv: nn.Conv2d) -> bool:
    """Return whether the kernel for first blocks supports a convolution."""
    square = len({*conv.kernel_size}) == 1 and len({*conv.padding}) == 1 and not isinstance(conv.padding, str)
    plain = (*conv.stride, *conv.dilation, conv.groups) == (1,) * 5
    return square and plain and conv.weight[0].numel() <= SMALL_FILTER and conv.out_channels in _OUTPUTS


def _is_relu(folded: fx.GraphModule, node: fx.Node) -> bool:
    return type(_module(folded, node)) is nn.ReLU or (node.op != "call_module" and node.target in _RELU)


def _is_pool(module: nn.Module | None) -> bool:
    """Return whether a module is plain 2×2 max-pooling."""
    if type(module) is not nn.MaxPool2d:
        return False
    sizes = [value if isinstance(value, tuple) else (value, value) for value in (module.kernel_size, module.stride)]
    others = module.padding, module.dilation, module.ceil_mode, module.return_indices
    return sizes == [(2, 2), (2, 2)] and others in ((0, 1, False, False), ((0, 0), (1, 1), False, False))


def _only_user(node: fx.Node) -> fx.Node | None:
    return next(iter(node.users)) if len(node.users) == 1 else None


def _module(folded: fx.GraphModule, node: fx.Node) -> nn.Module | None:
    return folded.get_submodule(str(node.target)) if node.op == "call_module" else None


def _set_module(folded: fx.GraphModule, node: fx.Node, module: nn.Module) -> None:
    node.target = f"{node.name}_fused"
    folded.add_module(node.target, module)


class MemberStreams(fx.Interpreter):
    """Runs a folded network with each member's operations on a CUDA stream of its own: one member leaves a GPU partly idle.

    It is meant to run once, while a CUDA graph is captured. Tensors that pass from one stream to another are kept until the
    end, since their memory must not be reused while another stream still reads it.
    """

    def __init__(self, folded: fx.GraphModule) -> None:
        super().__init__(folded)
        self.passed_on: list[Any] = []
        self.streams: dict[int, torch.cuda.Stream] = {}
        self.stream_of: dict[fx.Node, torch.cuda.Stream] = {}

    def run_node(self, node: fx.Node) -> Any:
        """Run one operation after all that it needs."""
        here = torch.cuda.current_stream()
        member = node.meta.get("member")
        stream = here if member is None else self.streams.setdefault(member, torch.cuda.Stream())
        for argument in node.all_input_nodes:
            if self.stream_of[argument] != stream:
                stream.wait_stream(self.stream_of[argument])
                self.passed_on.append(self.env[argument])
        self.stream_of[node] = stream
        with torch.cuda.stream(stream):
            return super().run_node(node)
