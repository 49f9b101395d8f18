"""ONNX graphs as torch networks, against ONNX Runtime."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from besnn.errors import DataError
from besnn.wrapping import find_layers
from besnn.wrapping.onnx_graph import load_onnx

onnx = pytest.importorskip("onnx")
runtime = pytest.importorskip("onnxruntime")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402


class Many(nn.Module):
    """A little of everything: strides, groups, squeeze and excitation, tokens, attention, shapes that depend on the batch."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.Hardswish(), nn.MaxPool2d(3, 2, 1))
        self.gate = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(8, 8, 1), nn.Hardsigmoid())
        self.mix = nn.Conv2d(8, 8, 3, padding=1, groups=4)
        self.norm, self.act = nn.LayerNorm(8), nn.GELU()
        self.query, self.key = nn.Linear(8, 8), nn.Linear(8, 8, bias=False)
        self.token = nn.Parameter(torch.randn(1, 1, 8))
        self.head = nn.Linear(8, 5)

    def forward(self, x):
        x = self.stem(x)
        x = self.mix(x * self.gate(x)).clamp(-3, 3) + nn.functional.pad(x, (0, 1, 1, 0))[:, :, :-1, 1:]
        tokens = torch.cat([self.token.expand(x.shape[0], -1, -1), x.flatten(2).transpose(1, 2)], dim=1)
        tokens = self.act(self.norm(tokens))
        attention = (self.query(tokens) @ self.key(tokens).transpose(1, 2) / 8**0.5).softmax(-1)
        return self.head((attention @ tokens)[:, 0])


@pytest.mark.filterwarnings("ignore")  # of torch's exporter about itself
@pytest.mark.parametrize("opset", [18, 20])
def test_networks_that_torch_exports(opset, tmp_path):
    torch.manual_seed(0)
    network, path = Many().eval(), tmp_path / "many.onnx"
    batch = torch.export.Dim("batch")
    x = torch.randn(4, 3, 16, 16)
    torch.onnx.export(
        network, (x,), path, dynamo=True, opset_version=opset, dynamic_shapes=({0: batch},), verbose=False, external_data=False
    )
    loaded, shape, _ = load_onnx(path)
    session = runtime.InferenceSession(path)
    inputs = torch.randn(7, *shape)
    (expected,) = session.run(None, {session.get_inputs()[0].name: inputs.numpy()})
    with torch.no_grad():
        np.testing.assert_allclose(loaded(inputs), expected, atol=1e-5)
    assert find_layers(loaded, inputs).head is not None


def graph_of(*nodes, constants=(), output="y", shape=("batch", 3, 8, 8)):
    """Write a graph of nodes from `x` to `output`."""
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        list(nodes),
        "graph",
        [value("x", TensorProto.FLOAT, shape)],
        [value(output, TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array, name) for name, array in constants],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


RNG = np.random.default_rng(0)
WEIGHT = RNG.normal(size=(4, 3, 3, 3)).astype(np.float32)
CASES = {
    "uneven pads": (helper.make_node("Conv", ["x", "w"], ["y"], pads=[0, 1, 2, 1], strides=[2, 2]), ("w", WEIGHT)),
    "same pads": (helper.make_node("Conv", ["x", "w"], ["y"], auto_pad="SAME_UPPER", strides=[2, 2]), ("w", WEIGHT)),
    "dilated": (helper.make_node("Conv", ["x", "w"], ["y"], dilations=[2, 2], pads=[2, 2, 2, 2]), ("w", WEIGHT)),
    "uneven max pool": (helper.make_node("MaxPool", ["x"], ["y"], kernel_shape=[3, 3], strides=[2, 2], pads=[0, 0, 1, 1]),),
    "average pool": (
        helper.make_node("AveragePool", ["x"], ["y"], kernel_shape=[3, 3], pads=[1, 1, 1, 1], count_include_pad=1),
    ),
    "ceil": (helper.make_node("AveragePool", ["x"], ["y"], kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1),),
    "split": (helper.make_node("Split", ["x", "s"], ["y", "z"], axis=2), ("s", np.array([3, 5]))),
    "slice": (
        helper.make_node("Slice", ["x", "a", "b", "c", "d"], ["y"]),
        *zip("abcd", (np.array(v) for v in ([1, -6], [2**62, -1], [1, 3], [1, 2])), strict=True),
    ),
    "gather": (helper.make_node("Gather", ["x", "i"], ["y"], axis=2), ("i", np.array([[0, -1], [2, 2]]))),
    "clip": (helper.make_node("Clip", ["x", "", "h"], ["y"]), ("h", np.array(0.3, np.float32))),
    "transpose": (helper.make_node("Transpose", ["x"], ["y"], perm=[0, 2, 3, 1]),),
    "reduce all": (helper.make_node("ReduceL2", ["x", "a"], ["y"], keepdims=0), ("a", np.array([1, -1]))),
    "where": (helper.make_node("Where", ["c", "x", "o"], ["y"]), ("c", RNG.random((8, 8)) > 0.5), ("o", np.float32([2]))),
    "instance": (helper.make_node("InstanceNormalization", ["x", "s", "s"], ["y"]), ("s", np.float32([1, 2, 3]))),
    "lrn": (helper.make_node("LRN", ["x"], ["y"], size=3, alpha=0.1),),
    "prelu": (helper.make_node("PRelu", ["x", "s"], ["y"]), ("s", np.float32([[[0.1]], [[0.2]], [[0.3]]]))),
    "pad": (helper.make_node("Pad", ["x", "p"], ["y"], mode="reflect"), ("p", np.array([0, 0, 1, 2, 0, 0, 3, 0]))),
    "tile": (helper.make_node("Tile", ["x", "r"], ["y"]), ("r", np.array([1, 2, 1, 3]))),
    "depth": (helper.make_node("Flatten", ["x"], ["y"], axis=2),),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_single_operators(case, tmp_path):
    node, *constants = CASES[case]
    onnx.save(graph_of(node, constants=constants), tmp_path / "one.onnx")
    loaded, *_ = load_onnx(tmp_path / "one.onnx")
    x = torch.randn(5, 3, 8, 8)
    expected = runtime.InferenceSession(tmp_path / "one.onnx").run(["y"], {"x": x.numpy()})[0]
    with torch.no_grad():
        np.testing.assert_allclose(loaded(x), expected, atol=1e-5)


def refused(model, path: Path, message: str) -> None:
    onnx.save(model, path)
    with pytest.raises(DataError, match=re.escape(message)) as caught:
        load_onnx(path)
    assert "\n" not in str(caught.value)


def test_unknown_operators_are_named(tmp_path):
    nodes = [helper.make_node("Unique", ["x"], ["z"]), helper.make_node("Special", ["z"], ["y"], domain="com.mine")]
    refused(graph_of(*nodes), tmp_path / "x.onnx", "uses operators that besnn does not read (Unique, com.mine.Special)")


def test_a_graph_for_one_batch_size(tmp_path):
    node = helper.make_node("Reshape", ["x", "s"], ["y"])
    model = graph_of(node, constants=[("s", np.array([1, 192]))], shape=(1, 3, 8, 8))
    refused(model, tmp_path / "x.onnx", "cannot be run on a batch of 3")


def test_no_graph_at_all(tmp_path):
    (tmp_path / "x.onnx").write_bytes(b"not a graph")
    with pytest.raises(DataError, match="cannot be read"):
        load_onnx(tmp_path / "x.onnx")
