"""Properties of single operations, the nodes of a torch.fx graph, that folding relies on."""

import operator
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd
from torch.nn.modules.instancenorm import _InstanceNorm

from besnn.layers.embedding import PiecewiseLinear
from besnn.layers.norm import MemberBatchNorm

# They treat each row by itself and keep the batch on the first axis.
_ROWWISE_MODULES = (
    nn.Linear, _ConvNd, nn.Embedding, nn.PReLU, _BatchNorm, _InstanceNorm, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm,
    nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Mish, nn.Sigmoid, nn.Tanh, nn.Hardswish,
    nn.Hardsigmoid, nn.Softplus, nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.Upsample,
    nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d, nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d,
    nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d, nn.AdaptiveMaxPool2d, PiecewiseLinear,
)  # fmt: skip
_ROWWISE_FUNCTIONS = {
    F.relu, F.leaky_relu, F.elu, F.gelu, F.silu, F.sigmoid, F.tanh, F.softplus, F.dropout, F.interpolate,
    F.max_pool1d, F.max_pool2d, F.max_pool3d, F.avg_pool1d, F.avg_pool2d, F.avg_pool3d, F.adaptive_avg_pool2d,
    torch.relu, torch.sigmoid, torch.tanh, torch.add, torch.mul, torch.sub,
    operator.add, operator.iadd, operator.mul, operator.imul, operator.sub, operator.neg,
}  # fmt: skip
_ROWWISE_METHODS = {"relu", "relu_", "sigmoid", "tanh", "add", "add_", "mul", "mul_", "contiguous"}

# They may return a view of their first argument, or the argument itself.
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


def is_rowwise(node: fx.Node, module: nn.Module | None) -> bool:
    """Return whether an operation computes each row by itself and returns one tensor with the same rows."""
    if node.kwargs.get("return_indices") or getattr(module, "return_indices", False):
        return False
    if isinstance(module, nn.Flatten):
        return module.start_dim >= 1
    if module is not None:
        return isinstance(module, _ROWWISE_MODULES) and not isinstance(module, MemberBatchNorm)
    if node.target in ("flatten", torch.flatten):
        start = node.kwargs.get("start_dim", *node.args[1:2])
        return isinstance(start, int) and start >= 1
    if _is_reshape(node):
        shape = _new_shape(node)
        return shape[:1] == (-1,) and all(isinstance(size, int) for size in shape)
    return node.target in (_ROWWISE_METHODS if node.op == "call_method" else _ROWWISE_FUNCTIONS)


def is_view(node: fx.Node) -> bool:
    """Return whether an operation is a view in another shape, given by position; by keyword it may be another dtype."""
    called = node.op == "call_method" and node.target == "view"
    return called and not node.kwargs and not isinstance(node.args[1], torch.dtype)


def is_size(node: fx.Node) -> bool:
    """Return whether an operation reads a property of a tensor, such as its shape."""
    return node.target is getattr or (node.op == "call_method" and node.target in ("size", "dim"))


def overwrites(node: fx.Node, module: nn.Module | None) -> bool:
    """Return whether an operation works in place."""
    if module is not None or node.op not in ("call_method", "call_function"):
        return bool(getattr(module, "inplace", False))
    return bool(node.kwargs.get("inplace")) or _name(node).endswith("_") or node.target in _OVERWRITING_OPERATORS


def may_share_memory(node: fx.Node, module: nn.Module | None) -> bool:
    """Return whether an operation's result may share the memory of its first argument."""
    return isinstance(module, _SHARING_MODULES) if module is not None else _name(node) in _SHARING_NAMES


def _name(node: fx.Node) -> str:
    return node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")


def _is_reshape(node: fx.Node) -> bool:
    return node.target is torch.reshape or (node.op == "call_method" and node.target in ("view", "reshape"))


def _new_shape(node: fx.Node) -> tuple[Any, ...]:
    shape = node.args[1:]
    return tuple(shape[0]) if len(shape) == 1 and isinstance(shape[0], tuple | list) else shape
