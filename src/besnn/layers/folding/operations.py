"""What folding knows about the single operations of a network, the nodes of its torch.fx graph."""

import operator
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd
from torch.nn.modules.instancenorm import _InstanceNorm

from besnn.layers.norm import MemberBatchNorm

# They treat every channel alike and by itself, so they don't care whether members are packed into the channels.
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

# They treat every row by itself and leave the batch on the first axis.
_ROWWISE_MODULES = (
    nn.Linear, _ConvNd, nn.Embedding, nn.PReLU, _BatchNorm, _InstanceNorm, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm,
)  # fmt: skip

# They may give a view of what they are given, or the very thing.
_SHARING_MODULES = (
    nn.Flatten, nn.Unflatten, nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout,
)  # fmt: skip
_SHARING_NAMES = {
    "getitem", "getattr", "view", "view_as", "reshape", "reshape_as", "flatten", "unflatten", "ravel", "squeeze", "unsqueeze",
    "transpose", "t", "adjoint", "swapaxes", "swapdims", "permute", "movedim", "moveaxis", "expand", "expand_as",
    "broadcast_to", "narrow", "select", "chunk", "split", "tensor_split", "hsplit", "vsplit", "dsplit", "unbind", "diagonal",
    "unfold", "as_strided", "contiguous", "detach", "alias", "to", "type", "type_as", "float", "half", "bfloat16", "double",
    "dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "real", "positive",
}  # fmt: skip

_OVERWRITING_OPERATORS = {operator.iadd, operator.isub, operator.imul, operator.itruediv}


def is_channelwise(node: fx.Node, module: nn.Module | None) -> bool:
    """Whether an operation does to `packed` tensors, all of the same channels, what it does to `rows`."""
    if node.kwargs.get("return_indices") or getattr(module, "return_indices", False):
        return False
    if module is not None:
        return isinstance(module, _CHANNELWISE_MODULES)
    return node.target in (_CHANNELWISE_METHODS if node.op == "call_method" else _CHANNELWISE_FUNCTIONS)


def is_rowwise(node: fx.Node, module: nn.Module | None) -> bool:
    """Whether an operation on a `shared` batch gives a `shared` batch: the same rows, each computed by itself."""
    if isinstance(module, _ROWWISE_MODULES):
        return not isinstance(module, MemberBatchNorm)
    if _is_reshape(node):
        shape = _wanted_shape(node)
        return shape[:1] == (-1,) and all(isinstance(size, int) for size in shape)
    return is_channelwise(node, module)


def is_view(node: fx.Node) -> bool:
    """Whether an operation views a tensor in another shape, given by position; by keyword it may be another type."""
    called = node.op == "call_method" and node.target == "view"
    return called and not node.kwargs and not isinstance(node.args[1], torch.dtype)


def flattens_rows(node: fx.Node, module: nn.Module | None) -> bool:
    """Whether an operation is one of the idioms for `torch.flatten(x, 1)`."""
    if module is not None:
        return isinstance(module, nn.Flatten) and (module.start_dim, module.end_dim) == (1, -1)
    if node.target in ("flatten", torch.flatten):
        return (*node.args[1:], *node.kwargs.items()) in ((1,), (("start_dim", 1),))
    if _is_reshape(node):
        shape = _wanted_shape(node)
        return shape[1:] == (-1,) and _is_first_size(shape[0], node.args[0])
    return False


def is_size(node: fx.Node) -> bool:
    """Whether an operation asks for a property of a tensor, such as its shape, rather than for a tensor."""
    return node.target is getattr or (node.op == "call_method" and node.target in ("size", "dim"))


def overwrites(node: fx.Node, module: nn.Module | None) -> bool:
    """Whether an operation works in place."""
    if module is not None or node.op not in ("call_method", "call_function"):
        return bool(getattr(module, "inplace", False))
    return bool(node.kwargs.get("inplace")) or _name(node).endswith("_") or node.target in _OVERWRITING_OPERATORS


def may_share_memory(node: fx.Node, module: nn.Module | None) -> bool:
    """Whether what an operation gives may lie in the memory of what it is given first."""
    return isinstance(module, _SHARING_MODULES) if module is not None else _name(node) in _SHARING_NAMES


def _name(node: fx.Node) -> str:
    """What a function or method is called."""
    return node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")


def _is_reshape(node: fx.Node) -> bool:
    return node.target is torch.reshape or (node.op == "call_method" and node.target in ("view", "reshape"))


def _wanted_shape(node: fx.Node) -> tuple[Any, ...]:
    shape = node.args[1:]
    return tuple(shape[0]) if len(shape) == 1 and isinstance(shape[0], tuple | list) else shape


def _is_first_size(size: Any, tensor: Any) -> bool:
    """Whether a node is `tensor.size(0)` or `tensor.shape[0]`."""
    if not isinstance(size, fx.Node):
        return False
    if size.target is operator.getitem:
        source: Any = size.args[0]
        index: Any = size.args[1]
        return index == 0 and isinstance(source, fx.Node) and source.args in ((tensor,), (tensor, "shape"))
    return size.target == "size" and size.args == (tensor, 0)
