"""An ONNX graph as a network: ONNX Runtime runs it, so that its logits are those that it has everywhere else.

The tensors at which blocks may end, and the linear layer at the end, appear as layers of the network, so that hooks can look at
them as at any other network's. Only tensors that a hook wants are made outputs of the graph that runs.
"""

import re
import threading
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from besnn.errors import DataError, InputError, one_line
from besnn.layers.folding.fold import INPUT

_BLOCK_ENDS = (
    *("Add", "AveragePool", "BatchNormalization", "Clip", "Concat", "Conv", "Elu", "Gelu", "HardSwish", "LayerNormalization"),
    *("LeakyRelu", "MaxPool", "PRelu", "Relu", "Sum"),
)
"""Operators whose outputs are worth looking at; others reshape, mask, or compute attention."""


def load_onnx(file: Path | bytes, name: str = "the ONNX graph") -> tuple["OnnxNetwork", tuple[int, ...], bytes]:
    """Return the network, the shape of one of its inputs (0 for any size), and one file with all weights.

    Errors call the file `name`. Weights that lie in files beside it are read, too.
    """
    try:
        import onnx
        import onnxruntime  # noqa: F401
    except ImportError:
        raise InputError("an .onnx network needs the onnx extra: pip install 'besnn[onnx]'") from None
    try:
        model = onnx.load_from_string(file) if isinstance(file, bytes) else onnx.load(str(file))
        content = bytes(model.SerializeToString())
        network = OnnxNetwork(content, name)
    except DataError:
        raise
    except Exception as error:  # whatever is not a graph, has unknown operators, lacks its weights, or has over 2 GiB of them
        reason = f"is not an ONNX graph that ONNX Runtime runs ({one_line(error)[:200]})"
        raise DataError(f"{name} {reason}: export it again") from None
    return network, network.input_shape, content


class OnnxNetwork(nn.Module):
    """An ONNX graph from one tensor to logits, for batches of any size; errors call it `name`."""

    def __init__(self, content: bytes, name: str) -> None:
        super().__init__()
        import onnx

        self.content = content
        graph = onnx.shape_inference.infer_shapes(onnx.load_from_string(content)).graph
        constants = {each.name: each for each in graph.initializer}
        inputs = [each for each in graph.input if each.name not in constants]
        if len(inputs) != 1 or len(graph.output) != 1:
            found = f"{len(inputs)} inputs and returns {len(graph.output)} values"
            raise DataError(f"{name} takes {found}: export a network from one tensor to logits")
        self.input_name, self.output_name = inputs[0].name, graph.output[0].name
        taken = inputs[0].type.tensor_type
        batch, *sizes = [dim.dim_value for dim in taken.shape.dim]
        if batch:
            raise DataError(f"{name} takes only batches of {batch}: export it with a dynamic batch axis")
        self.input_shape, self.dtype = tuple(sizes), onnx.helper.tensor_dtype_to_np_dtype(taken.elem_type)
        self.tensors: dict[str, list[str]] = {}  # by layer
        form = graph.output[0].type.tensor_type.elem_type
        self.known = {each.name: each for each in graph.value_info if each.type.tensor_type.elem_type == form}
        for node in graph.node:
            if node.op_type in _BLOCK_ENDS and node.output[0] in self.known:
                self._add_layer(node.output[0], nn.Identity(), [node.output[0]])
        linear = _last_linear(graph, constants)
        if linear is not None and linear.into in {self.input_name, *self.known}:
            self._add_layer("linear", linear, [linear.into, self.output_name])
        self._sessions: dict[tuple[str, ...], Any] = {}
        self._lock = threading.Lock()
        self.session()  # fails here rather than later

    def _add_layer(self, name: str, layer: nn.Module, tensors: list[str]) -> None:
        name = re.sub(r"\W+", "_", name).strip("_")
        while hasattr(self, name):
            name += "_"
        self.add_module(name, layer)
        self.tensors[name] = tensors

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_sessions": {}, "_lock": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._lock = threading.Lock()

    def tensor(self, layer: str) -> str:
        """Return the tensor that a layer's name, with or without `:input`, stands for."""
        return self.tensors[layer.removesuffix(INPUT)][0]

    def with_outputs(self, *tensors: str) -> bytes:
        """Return the graph with inner tensors as further outputs, behind the logits."""
        import onnx

        model = onnx.load_from_string(self.content)
        model.graph.output.extend(self.known[name] for name in tensors)
        return bytes(model.SerializeToString())

    def session(self, *tensors: str, device: str = "cpu") -> Any:
        """Return what runs the graph with inner tensors as further outputs."""
        import onnxruntime

        with self._lock:
            if (device, *tensors) not in self._sessions:
                options = onnxruntime.SessionOptions()
                options.intra_op_num_threads, options.log_severity_level = torch.get_num_threads(), 3
                wanted = ["CUDAExecutionProvider"] if device == "cuda" else []
                providers = [
                    each for each in onnxruntime.get_available_providers() if each in (*wanted, "CPUExecutionProvider")
                ]
                graph = self.with_outputs(*tensors)
                self._sessions[device, *tensors] = onnxruntime.InferenceSession(graph, options, providers)
            return self._sessions[device, *tensors]

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of a batch, and show the layers that have hooks their tensors."""
        watched = [name for name, layer in self.named_children() if layer._forward_hooks or layer._forward_pre_hooks]
        inner = list(dict.fromkeys(each for name in watched for each in self.tensors[name] if each != self.output_name))
        outputs = self.session(*inner, device=x.device.type).run(
            None, {self.input_name: x.cpu().numpy().astype(self.dtype, copy=False)}
        )
        values = {
            name: torch.from_numpy(np.asarray(array)).to(x.device)
            for name, array in zip([self.output_name, *inner], outputs, strict=True)
        }
        for name in watched:
            self.get_submodule(name)(*(values[each] for each in self.tensors[name]))
        return values[self.output_name].float()


class _Linear(nn.Module):
    """The linear layer that returns the logits, as hooks see it: it is run by the graph."""

    weight: Tensor
    bias: Tensor

    def __init__(self, into: str, weight: Tensor, bias: Tensor) -> None:
        super().__init__()
        self.into = into
        self.register_buffer("weight", weight)
        self.register_buffer("bias", bias)

    def forward(self, into: Tensor, out: Tensor) -> Tensor:
        return out


def _last_linear(graph: Any, constants: dict[str, Any]) -> _Linear | None:
    """Return the product with constants, with or without a sum, at the end of a graph; None if it ends otherwise."""
    from onnx import helper, numpy_helper

    makers = {output: node for node in graph.node for output in node.output}
    node, bias = makers.get(graph.output[0].name), None
    if node is not None and node.op_type == "Add":
        bias = next((name for name in node.input if name in constants), None)
        node = next((makers[name] for name in node.input if name in makers), None)
    if node is None or node.op_type not in ("Gemm", "MatMul") or node.input[1] not in constants:
        return None
    settings = {each.name: helper.get_attribute_value(each) for each in node.attribute}
    if settings.get("transA") or {settings.get("alpha", 1.0), settings.get("beta", 1.0)} != {1.0}:
        return None
    bias = node.input[2] if len(node.input) > 2 else bias
    if bias is not None and bias not in constants:
        return None
    weight = torch.from_numpy(numpy_helper.to_array(constants[node.input[1]]).copy()).float()
    weight = weight if settings.get("transB") else weight.T.contiguous()
    given = torch.zeros(len(weight)) if bias is None else torch.from_numpy(numpy_helper.to_array(constants[bias]).copy())
    return _Linear(node.input[0], weight, given.float().expand(len(weight)).clone())
