"""Reading an ONNX graph as a torch network: one module per node, and one small function per operator.

The network is exported at once as a `torch.export` program, so that a model file needs nothing of ONNX. Shapes, which graphs
compute as tensors of integers, are computed as lists of Python integers here, so that batches may have any size.
"""

import math
import operator
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from besnn.errors import DataError, InputError, one_line, reading
from besnn.model.program import load_program, save_program

Value = Any  # a tensor, or a Python number, or a list of Python numbers: an integer tensor of rank 0 or 1
Operator = Callable[..., Value]
MOST_INTEGERS = 64
"""Integer constants of at most so many numbers are taken to be shapes, axes and the like."""


def load_onnx(path: Path) -> tuple[nn.Module, tuple[int, ...], bytes]:
    """Return the network in an .onnx file, the shape of one of its inputs (0 for any size), and its program."""
    try:
        import onnx
    except ImportError:
        raise InputError("reading an .onnx file needs the onnx extra: pip install 'besnn[onnx]'") from None
    with reading(path):
        graph = onnx.load(str(path)).graph
    nodes = {f"{node.domain}.{node.op_type}".removeprefix("ai.onnx").lstrip(".") for node in graph.node}
    if unknown := sorted(nodes - {*OPERATORS, "Constant"}):
        advice = "save the network with torch.export.save as .pt2 instead"
        raise DataError(f"{path} uses operators that besnn does not read ({', '.join(unknown)}): {advice}")
    constants = {each.name for each in graph.initializer}
    inputs = [each for each in graph.input if each.name not in constants]
    if len(inputs) != 1 or len(graph.output) != 1:
        found = f"{len(inputs)} inputs and returns {len(graph.output)} values"
        raise DataError(f"{path} takes {found}: export a network from one tensor to logits")
    dims = [dim.dim_value for dim in inputs[0].type.tensor_type.shape.dim]
    network = GraphNetwork(graph, inputs[0].name)
    try:
        example = torch.zeros(3, *(size or 32 for size in dims[1:]))
        program = save_program(network.eval(), example)
    except Exception as error:  # whatever a graph does that was made for one batch size
        reason = one_line(error)[:200]
        raise DataError(f"{path} cannot be run on a batch of 3 ({reason}): export it with a dynamic batch axis") from None
    loaded, shape, content = load_program(program, str(path))
    return loaded, tuple(given and found for given, found in zip(dims[1:], shape, strict=True)), content


class GraphNetwork(nn.Module):
    """An ONNX graph of one input and one output."""

    def __init__(self, graph: Any, input_name: str) -> None:
        super().__init__()
        self.input_name, self.output_name = input_name, graph.output[0].name
        self.values: dict[str, Value] = {"": None}  # shapes and the like
        self.buffers_of: dict[str, str] = {}
        self.steps: list[tuple[str, list[str], list[str]]] = []  # module, inputs, outputs
        from onnx import numpy_helper

        for constant in graph.initializer:
            self._add_constant(constant.name, numpy_helper.to_array(constant))
        for number, node in enumerate(graph.node):
            attributes = {attribute.name: _attribute(attribute) for attribute in node.attribute}
            if node.op_type == "Constant":
                self._add_constant(node.output[0], np.asarray(next(iter(attributes.values()))))
                continue
            name = re.sub(r"\W+", "_", node.name or f"{node.op_type}_{number}").strip("_")
            while hasattr(self, name):
                name += "_"
            self._add_step(name, node, attributes)

    def _add_constant(self, name: str, array: np.ndarray[Any, Any]) -> None:
        if array.dtype.kind in "iub" and array.ndim <= 1 and array.size <= MOST_INTEGERS:
            self.values[name] = array.tolist()
            return
        self.buffers_of[name] = f"constant_{len(self.buffers_of)}"
        self.register_buffer(self.buffers_of[name], torch.from_numpy(np.array(array)))

    def _add_step(self, name: str, node: Any, attributes: dict[str, Any]) -> None:
        inputs, linear = list(node.input), None
        if node.op_type == "Gemm" and not attributes.get("transA") and attributes.get("alpha", 1.0) == 1.0:
            linear = self._linear(inputs, attributes)
        if linear is not None:
            inputs = inputs[:1]
        self.add_module(name, linear or _Step(node.op_type, attributes))
        self.steps.append((name, inputs, list(node.output)))

    def _linear(self, inputs: list[str], attributes: dict[str, Any]) -> nn.Linear | None:
        """Return a product with constant weights as a linear layer: scores look for one at the end of a network."""
        if not all(name in self.buffers_of for name in inputs[1:]) or attributes.get("beta", 1.0) != 1.0:
            return None
        weight, *bias = (getattr(self, self.buffers_of[name]) for name in inputs[1:])
        weight = weight if attributes.get("transB") else weight.T
        layer = nn.Linear(weight.shape[1], weight.shape[0], bias=bool(bias))
        layer.weight.data = weight.clone().contiguous()
        if bias:
            layer.bias.data = bias[0].expand(len(weight)).clone()
        return layer

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of a batch."""
        values = {**self.values, self.input_name: x}
        values |= {name: getattr(self, buffer) for name, buffer in self.buffers_of.items()}
        for name, inputs, outputs in self.steps:
            result = self.get_submodule(name)(*(values[each] for each in inputs))
            values |= zip(outputs, result if isinstance(result, tuple) else (result,), strict=False)
        return cast(Tensor, values[self.output_name])


class _Step(nn.Module):
    """One node of the graph."""

    def __init__(self, kind: str, attributes: dict[str, Any]) -> None:
        super().__init__()
        self.kind, self.attributes = kind, attributes

    def forward(self, *inputs: Value) -> Value:
        return OPERATORS[self.kind](*inputs, **self.attributes)


def _attribute(attribute: Any) -> Any:
    from onnx import TensorProto, helper, numpy_helper

    value = helper.get_attribute_value(attribute)
    if isinstance(value, TensorProto):
        return numpy_helper.to_array(value)
    return value.decode() if isinstance(value, bytes) else value


def _is_python(*values: Value) -> bool:
    return not any(isinstance(value, Tensor) for value in values)


def _listed(value: Value) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


def _tensor(value: Value, like: Tensor) -> Tensor:
    if isinstance(value, Tensor):
        return value
    return torch.tensor(value, device=like.device)


def _elementwise(function: Callable[[Any, Any], Any], one: Value, other: Value, **_: Any) -> Value:
    """Apply a function of two numbers to tensors, or to shapes."""
    if not _is_python(one, other):
        like = one if isinstance(one, Tensor) else other
        return function(*(value if isinstance(value, Tensor | int | float) else _tensor(value, like) for value in (one, other)))
    if not isinstance(one, list) and not isinstance(other, list):
        return function(one, other)
    ones, others = _listed(one), _listed(other)
    longest = max(len(ones), len(others))
    pairs = zip(ones * (longest // len(ones)), others * (longest // len(others)), strict=True)
    return [function(*pair) for pair in pairs]


def _divide(one: Any, other: Any) -> Any:
    whole = not (isinstance(one, Tensor) and one.is_floating_point()) and not (
        isinstance(other, Tensor) and other.is_floating_point()
    )
    if not whole or isinstance(one, float) or isinstance(other, float):
        return one / other
    return (
        torch.div(one, other, rounding_mode="trunc") if isinstance(one, Tensor) or isinstance(other, Tensor) else one // other
    )


def _unary(function: Callable[[Tensor], Tensor], x: Value, **_: Any) -> Value:
    return function(x if isinstance(x, Tensor) else torch.tensor(x))


def _many(function: Callable[[Any, Any], Any], first: Value, *others: Value) -> Value:
    for other in others:
        first = _elementwise(function, first, other)
    return first


def _shape(x: Value, start: int = 0, end: int | None = None) -> Value:
    return [len(x)] if isinstance(x, list) else list(x.shape[start:end])


def _reshape(x: Value, shape: Value, allowzero: int = 0) -> Value:
    if not isinstance(x, Tensor):
        return x[0] if not shape and isinstance(x, list) else _listed(x)
    return x.reshape([x.shape[at] if size == 0 and not allowzero else size for at, size in enumerate(_listed(shape))])


def _expand(x: Value, shape: Value) -> Value:
    if not isinstance(x, Tensor):
        return _listed(x) * (math.prod(_listed(shape)) // len(_listed(x)))
    wanted = [1] * (x.ndim - len(shape)) + _listed(shape)
    own = [1] * (len(wanted) - x.ndim) + list(x.shape)
    return x.expand([mine if isinstance(size, int) and size == 1 else size for mine, size in zip(own, wanted, strict=True)])


def _gather(x: Value, indices: Value, axis: int = 0) -> Value:
    if isinstance(x, list) and not isinstance(indices, Tensor):
        return [x[at] for at in indices] if isinstance(indices, list) else x[indices]
    if isinstance(indices, int):
        return x.select(axis, indices)
    indices = _tensor(indices, x)
    axis = axis % x.ndim
    taken = x.index_select(axis, torch.where(indices < 0, indices + x.shape[axis], indices).flatten())
    return taken.reshape(*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :])


def _concat(*parts: Value, axis: int) -> Value:
    if _is_python(*parts):
        return [each for part in parts for each in _listed(part)]
    like = next(part for part in parts if isinstance(part, Tensor))
    return torch.cat([_tensor(part, like) for part in parts], dim=axis)


def _slice(x: Value, starts: Value, ends: Value, axes: Value = None, steps: Value = None) -> Value:
    starts, ends = _listed(starts), _listed(ends)
    axes = range(len(starts)) if axes is None else _listed(axes)
    steps = [1] * len(starts) if steps is None else _listed(steps)
    if isinstance(x, list):
        return x[slice(starts[0], ends[0], steps[0])]
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        places = [slice(None)] * x.ndim
        places[axis] = slice(start, None if isinstance(end, int) and end >= 2**31 - 1 else end, step)
        x = x[tuple(places)]
    return x


def _unsqueeze(x: Value, axes: Value) -> Value:
    if not isinstance(x, Tensor):
        return _listed(x)
    rank = x.ndim + len(_listed(axes))
    for axis in sorted(axis % rank for axis in _listed(axes)):
        x = x.unsqueeze(axis)
    return x


def _squeeze(x: Value, axes: Value = None) -> Value:
    if not isinstance(x, Tensor):
        return _listed(x)[0]
    return x.squeeze() if axes is None else x.squeeze([axis % x.ndim for axis in _listed(axes)])


def _split(x: Tensor, split: Value = None, axis: int = 0, num_outputs: int | None = None) -> Value:
    if split is not None:
        return tuple(x.split(_listed(split), dim=axis))
    return tuple(x.split(-(-x.shape[axis] // (num_outputs or 2)), dim=axis))


def _cast(x: Value, to: int, **_: Any) -> Value:
    from onnx import helper

    kind = helper.tensor_dtype_to_np_dtype(to).kind
    if not isinstance(x, Tensor):
        convert = {"f": float, "b": bool}.get(kind, lambda value: value)
        return [convert(each) for each in x] if isinstance(x, list) else convert(x)
    return x.to(getattr(torch, np.dtype(helper.tensor_dtype_to_np_dtype(to)).name.replace("float_", "float")))


def _where(condition: Value, one: Value, other: Value) -> Value:
    if _is_python(condition, one, other):
        length = max(len(_listed(each)) for each in (condition, one, other))
        full = [_listed(each) * (length // len(_listed(each))) for each in (condition, one, other)]
        chosen = [left if yes else right for yes, left, right in zip(*full, strict=True)]
        return chosen if any(isinstance(each, list) for each in (condition, one, other)) else chosen[0]
    like = next(each for each in (condition, one, other) if isinstance(each, Tensor))
    return torch.where(*(_tensor(each, like) for each in (condition, one, other)))


def _constant_of_shape(shape: Value, value: Any = None) -> Value:
    fill = 0.0 if value is None else np.asarray(value).reshape(-1)[0].item()
    static = len(shape) <= 1 and not isinstance(fill, float) and all(isinstance(size, int) for size in shape)
    return [fill] * math.prod(shape) if static and shape else torch.full(tuple(shape), fill)


def _reduce(
    function: Callable[..., Tensor], x: Value, axes: Value = None, keepdims: int = 1, noop_with_empty_axes: int = 0
) -> Value:
    if not isinstance(x, Tensor):
        return math.prod(x) if function is torch.prod else sum(x)
    if not axes and noop_with_empty_axes:
        return x
    return function(x, dim=_listed(axes) if axes else list(range(x.ndim)), keepdim=bool(keepdims))


def _pads(x: Tensor, pads: Any, auto_pad: str, kernel: Any, strides: Any, fill: float = 0.0) -> tuple[Tensor, list[int]]:
    """Return the input and symmetric pads, after padding the input where pads are not symmetric."""
    rank = len(kernel)
    if auto_pad.startswith("SAME"):
        sides = zip(x.shape[2:], strides, kernel, strict=True)
        need = [max(0, (-(-size // step) - 1) * step + reach - size) for size, step, reach in sides]
        before = [(total + (auto_pad == "SAME_LOWER")) // 2 for total in need]
        pads = [*before, *(total - first for total, first in zip(need, before, strict=True))]
    pads = list(pads or [0] * 2 * rank)
    if pads[:rank] == pads[rank:]:
        return x, pads[:rank]
    flat = [each for axis in reversed(range(rank)) for each in (pads[axis], pads[rank + axis])]
    return F.pad(x, flat, value=fill), [0] * rank


def _conv(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, pads: Any = None, strides: Any = None, dilations: Any = None,
    group: int = 1, auto_pad: str = "NOTSET", kernel_shape: Any = None,
) -> Tensor:  # fmt: skip
    rank = weight.ndim - 2
    strides, dilations = strides or [1] * rank, dilations or [1] * rank
    reach = [(size - 1) * step + 1 for size, step in zip(weight.shape[2:], dilations, strict=True)]
    x, padding = _pads(x, pads, auto_pad, reach, strides)
    function = (F.conv1d, F.conv2d, F.conv3d)[rank - 1]
    return function(x, weight, bias, strides, padding, dilations, group)


def _pool(
    average: bool, x: Tensor, kernel_shape: Any, pads: Any = None, strides: Any = None, dilations: Any = None,
    ceil_mode: int = 0, count_include_pad: int = 0, auto_pad: str = "NOTSET", storage_order: int = 0,
) -> Tensor:  # fmt: skip
    rank, strides = len(kernel_shape), strides or [1] * len(kernel_shape)
    x, padding = _pads(x, pads, auto_pad, kernel_shape, strides, 0.0 if average else -torch.inf)
    if average:
        mean = (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)[rank - 1]
        return mean(x, kernel_shape, strides, padding, bool(ceil_mode), bool(count_include_pad))
    largest = (F.max_pool1d, F.max_pool2d, F.max_pool3d)[rank - 1]
    return largest(x, kernel_shape, strides, padding, dilations or [1] * rank, bool(ceil_mode))


def _gemm(
    a: Tensor, b: Tensor, c: Value = None, alpha: float = 1.0, beta: float = 1.0, transA: int = 0, transB: int = 0
) -> Tensor:
    product = alpha * ((a.T if transA else a) @ (b.T if transB else b))
    return product if c is None else product + beta * c


def _batch_norm(
    x: Tensor, scale: Tensor, bias: Tensor, mean: Tensor, variance: Tensor, epsilon: float = 1e-5, **_: Any
) -> Tensor:
    return F.batch_norm(x, mean, variance, scale, bias, False, 0.0, epsilon)


def _layer_norm(
    x: Tensor, scale: Tensor, bias: Tensor | None = None, axis: int = -1, epsilon: float = 1e-5, **_: Any
) -> Tensor:
    return F.layer_norm(x, list(x.shape[axis:]), scale, bias, epsilon)


def _instance_norm(x: Tensor, scale: Tensor, bias: Tensor, epsilon: float = 1e-5) -> Tensor:
    return F.instance_norm(x, weight=scale, bias=bias, eps=epsilon)


def _clip(x: Tensor, low: Value = None, high: Value = None, **attributes: Any) -> Tensor:
    low, high = (attributes.get(name, value) for name, value in (("min", low), ("max", high)))
    return x.clamp(low if low is None else _tensor(low, x), high if high is None else _tensor(high, x))


def _pad(x: Tensor, pads: Value, value: Value = None, axes: Value = None, mode: str = "constant") -> Tensor:
    axes = list(range(x.ndim)) if axes is None else [axis % x.ndim for axis in _listed(axes)]
    half = len(pads) // 2
    both = {axis: (pads[at], pads[half + at]) for at, axis in enumerate(axes)}
    flat = [each for axis in reversed(range(x.ndim)) for each in both.get(axis, (0, 0))]
    while len(flat) > 2 and flat[-2:] == [0, 0]:
        flat = flat[:-2]
    kind = {"edge": "replicate", "wrap": "circular"}.get(mode, mode)
    return F.pad(x, flat, mode=kind, value=float(value) if value is not None else None)


def _transpose(x: Tensor, perm: Any = None) -> Tensor:
    return x.permute(perm or list(reversed(range(x.ndim))))


def _softmax(function: Callable[..., Tensor], x: Tensor, axis: int = -1) -> Tensor:
    return function(x, dim=axis)


def _global(function: Callable[..., Tensor], x: Tensor) -> Tensor:
    return function(x, dim=list(range(2, x.ndim)), keepdim=True)


def _group_norm(x: Tensor, scale: Tensor, bias: Tensor, num_groups: int, epsilon: float = 1e-5, **_: Any) -> Tensor:
    return F.group_norm(x, num_groups, scale, bias, epsilon)


def _gelu(x: Tensor, approximate: str = "none") -> Tensor:
    return F.gelu(x, approximate=approximate)


def _hard_sigmoid(x: Tensor, alpha: float = 0.2, beta: float = 0.5) -> Tensor:
    return (alpha * x + beta).clamp(0, 1)


def _range(start: Value, limit: Value, delta: Value) -> Value:
    if all(isinstance(each, int) for each in (start, limit, delta)):
        return list(range(start, limit, delta))
    return torch.arange(start, limit, delta)


OPERATORS: dict[str, Operator] = {
    **{name: partial(_elementwise, function) for name, function in (
        ("Add", operator.add), ("Sub", operator.sub), ("Mul", operator.mul), ("Div", _divide), ("Pow", operator.pow),
        ("Equal", operator.eq), ("Greater", operator.gt), ("GreaterOrEqual", operator.ge), ("Less", operator.lt),
        ("LessOrEqual", operator.le), ("And", operator.and_), ("Or", operator.or_), ("MatMul", operator.matmul),
    )},
    **{name: partial(_unary, function) for name, function in (
        ("Abs", torch.abs), ("Neg", torch.neg), ("Exp", torch.exp), ("Log", torch.log), ("Sqrt", torch.sqrt),
        ("Erf", torch.erf), ("Reciprocal", torch.reciprocal), ("Floor", torch.floor), ("Ceil", torch.ceil),
        ("Round", torch.round),
        ("Sign", torch.sign), ("Sin", torch.sin), ("Cos", torch.cos), ("Not", torch.logical_not), ("Relu", torch.relu),
        ("Sigmoid", torch.sigmoid), ("Tanh", torch.tanh), ("Softplus", F.softplus), ("Softsign", F.softsign),
        ("HardSwish", F.hardswish), ("Mish", F.mish), ("Selu", F.selu),
    )},
    **{name: partial(_many, function) for name, function in (
        ("Sum", operator.add),
        ("Min", lambda one, other: torch.minimum(one, other) if isinstance(one, Tensor) else min(one, other)),
        ("Max", lambda one, other: torch.maximum(one, other) if isinstance(one, Tensor) else max(one, other)),
    )},
    **{name: partial(_reduce, function) for name, function in (
        ("ReduceMean", torch.mean), ("ReduceSum", torch.sum), ("ReduceMax", torch.amax), ("ReduceMin", torch.amin),
        ("ReduceL2", torch.linalg.vector_norm), ("ReduceProd", torch.prod),
    )},
    "Elu": lambda x, alpha=1.0: F.elu(x, alpha),
    "LeakyRelu": lambda x, alpha=0.01: F.leaky_relu(x, alpha),
    "PRelu": lambda x, slope: torch.where(x < 0, slope * x, x),
    "Gelu": _gelu,
    "HardSigmoid": _hard_sigmoid,
    "Clip": _clip,
    "Softmax": partial(_softmax, torch.softmax),
    "LogSoftmax": partial(_softmax, torch.log_softmax),
    "Conv": _conv,
    "MaxPool": partial(_pool, False),
    "AveragePool": partial(_pool, True),
    "GlobalAveragePool": partial(_global, torch.mean),
    "GlobalMaxPool": partial(_global, torch.amax),
    "LRN": lambda x, size, alpha=1e-4, beta=0.75, bias=1.0: F.local_response_norm(x, size, alpha, beta, bias),
    "BatchNormalization": _batch_norm,
    "LayerNormalization": _layer_norm,
    "InstanceNormalization": _instance_norm,
    "GroupNormalization": _group_norm,
    "Gemm": _gemm,
    "Einsum": lambda *tensors, equation: torch.einsum(equation, *tensors),
    "Identity": lambda x: x,
    "Dropout": lambda x, *_, **__: x,
    "Cast": _cast,
    "Shape": _shape,
    "Reshape": _reshape,
    "Flatten": lambda x, axis=1: x.flatten(axis) if axis == 1 else x.flatten(0, axis - 1).flatten(1),
    "Expand": _expand,
    "Tile": lambda x, repeats: x.repeat(_listed(repeats)),
    "Transpose": _transpose,
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
    "Concat": _concat,
    "Split": _split,
    "Slice": _slice,
    "Gather": _gather,
    "Where": _where,
    "ConstantOfShape": _constant_of_shape,
    "Range": _range,
    "Pad": _pad,
    "DepthToSpace": lambda x, blocksize, mode="DCR": F.pixel_shuffle(x, blocksize),
}  # fmt: skip
"""The operators that are read, as functions of a node's inputs and attributes."""
