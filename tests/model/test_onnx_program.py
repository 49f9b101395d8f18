"""ONNX graphs as networks that ONNX Runtime runs: their logits to the last bit, their layers, one graph of a detector."""

import copy
import re

import numpy as np
import pytest
import torch
from torch import nn

from besnn import Detector, wrap
from besnn.data import load
from besnn.errors import DataError, InputError
from besnn.export import export
from besnn.model.onnx_program import load_onnx
from besnn.wrapping import find_layers

onnx = pytest.importorskip("onnx", reason="needs the onnx extra")
runtime = pytest.importorskip("onnxruntime", reason="needs the onnx extra")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402


class Many(nn.Module):
    """Convolutions, squeeze and excitation, tokens, attention, shapes that depend on the batch."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 8, 3, 1, 1), nn.BatchNorm2d(8), nn.Hardswish(), nn.MaxPool2d(3, 2, 1))
        self.gate = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(8, 8, 1), nn.Hardsigmoid())
        self.mix = nn.Conv2d(8, 8, 3, padding=1, groups=4)
        self.norm, self.act = nn.LayerNorm(8), nn.GELU()
        self.query, self.key = nn.Linear(8, 8), nn.Linear(8, 8, bias=False)
        self.token = nn.Parameter(torch.randn(1, 1, 8))
        self.head = nn.Linear(8, 10)

    def forward(self, x):
        x = self.stem(x)
        x = self.mix(x * self.gate(x)).clamp(-3, 3)
        tokens = torch.cat([self.token.expand(x.shape[0], -1, -1), x.flatten(2).transpose(1, 2)], dim=1)
        tokens = self.act(self.norm(tokens))
        attention = (self.query(tokens) @ self.key(tokens).transpose(1, 2) / 8**0.5).softmax(-1)
        return self.head((attention @ tokens)[:, 0])


def saved(network, path, external=False):
    torch.onnx.export(
        network.eval(), (torch.rand(3, 1, 8, 8),), path, dynamo=True, opset_version=18, verbose=False,
        dynamic_shapes=({0: torch.export.Dim("batch")},), external_data=external,
    )  # fmt: skip
    return path


def own_logits(path, images):
    session = runtime.InferenceSession(path)
    return session.run(None, {session.get_inputs()[0].name: images.astype(np.float32) / np.float32(255)})[0]


@pytest.mark.filterwarnings("ignore")  # of torch's exporter about itself
def test_a_detector_around_a_graph(tmp_path):
    torch.manual_seed(0)
    path, digits, unseen = saved(Many(), tmp_path / "many.onnx"), load("digits:train"), load("digits:test")
    network, shape, content = load_onnx(path)
    assert shape == (1, 8, 8)
    detector = wrap(network, digits.inputs, digits.labels, score="combined", program=content)
    detector.save(tmp_path / "d.safetensors")
    again = Detector.load(tmp_path / "d.safetensors")
    ((evidence, _),) = again.outputs(unseen.inputs, again.layer)
    np.testing.assert_array_equal(evidence[0], own_logits(path, unseen.inputs))
    predictions = detector.predict(unseen.inputs)
    np.testing.assert_array_equal(again.score(unseen.inputs), predictions.score)
    export(again, tmp_path / "graph.onnx")
    session = runtime.InferenceSession(tmp_path / "graph.onnx")
    label, found, flagged = session.run(["label", "score", "is_ood"], {"inputs": unseen.inputs[:100]})
    np.testing.assert_array_equal(label, predictions.indices[:100])
    np.testing.assert_allclose(found, predictions.score[:100], rtol=1e-3, atol=1e-3)
    assert (flagged == predictions.is_ood[:100]).mean() > 0.98
    with pytest.raises(InputError, match="an ONNX graph, which torch cannot run: export the detector as onnx"):
        export(again, tmp_path / "graph.pt2", "torch")


@pytest.mark.filterwarnings("ignore")
def test_its_layers_are_those_of_the_torch_network(tmp_path):
    torch.manual_seed(0)
    body = [nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 8, 3, padding=1), nn.ReLU()]
    plain = nn.Sequential(*body, nn.Flatten(), nn.Linear(128, 10))
    network, *_ = load_onnx(saved(plain, tmp_path / "n.onnx", external=True))  # weights in a file of their own
    x = torch.rand(6, 1, 8, 8)
    theirs, ours = find_layers(network, x), find_layers(plain, x)
    assert (len(theirs.stages), theirs.features) == (len(ours.stages), "linear:input")
    torch.testing.assert_close(theirs.head.weight, ours.head.weight)
    torch.testing.assert_close(theirs.head.bias, ours.head.bias)
    assert torch.equal(copy.deepcopy(network)(x), network(x))


def graph_of(*nodes, constants=(), shape=("batch", 3), opset=11):
    """Return the bytes of a graph of nodes from `x` to `y`."""
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        list(nodes), "graph", [value("x", TensorProto.FLOAT, shape)], [value("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array, name) for name, array in constants],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8).SerializeToString()


def test_an_old_graph_of_products_and_sums(tmp_path):
    rng = np.random.default_rng(0)
    arrays = [("w", rng.normal(size=(3, 8))), ("v", rng.normal(size=(8, 2))), ("b", rng.normal(size=2))]
    constants = [(name, array.astype(np.float32)) for name, array in arrays]
    nodes = [("MatMul", ["x", "w"], "h"), ("Relu", ["h"], "r"), ("MatMul", ["r", "v"], "z"), ("Add", ["z", "b"], "y")]
    content = graph_of(*(helper.make_node(kind, into, [out]) for kind, into, out in nodes), constants=constants)
    network, shape, _ = load_onnx(content)
    assert shape == (3,)
    rows, labels = rng.normal(size=(300, 3)).astype(np.float32), rng.integers(0, 2, 300)
    detector = wrap(network, rows, labels, score="relative-mahalanobis", program=content)
    assert detector.layer == "linear:input"
    torch.testing.assert_close(network.linear.weight, torch.from_numpy(constants[1][1].T))
    export(detector, tmp_path / "g.onnx")
    found = runtime.InferenceSession(tmp_path / "g.onnx").run(["score"], {"inputs": rows[:20]})[0]
    np.testing.assert_allclose(found, detector.score(rows[:20]), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            lambda: graph_of(helper.make_node("Special", ["x"], ["y"], domain="com.mine")),
            "mine.onnx is not an ONNX graph that ONNX Runtime runs",
        ),
        (lambda: graph_of(helper.make_node("Relu", ["x"], ["y"]), shape=(1, 3)), "mine.onnx takes only batches of 1: export"),
        (lambda: graph_of(helper.make_node("Sum", ["x", "z"], ["y"])), "mine.onnx is not an ONNX graph that ONNX Runtime runs"),
        (lambda: b"not a graph", "mine.onnx is not an ONNX graph that ONNX Runtime runs"),
    ],
)
def test_what_cannot_be_run_gets_one_line(content, message):
    with pytest.raises(DataError, match=re.escape(message)) as caught:
        load_onnx(content(), "mine.onnx")
    assert "\n" not in str(caught.value)
