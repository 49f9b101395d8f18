"""A wrapped network is an ordinary detector, and the network stays as it is."""

import copy
import re

import numpy as np
import pytest
import torch
from torch import nn

from besnn import Detector, wrap
from besnn.data import Dataset, made_up_outliers, two_moons
from besnn.detection.densities import NearestNeighbourDensity
from besnn.errors import InputError
from besnn.evaluation import ood_metrics
from besnn.export import export
from besnn.model.program import load_program, save_program
from besnn.wrapping import score_names
from besnn.wrapping.scores import MEMORY


@pytest.fixture(scope="module")
def detector(network: nn.Module, digits: Dataset) -> Detector:
    return wrap(network, digits.inputs, digits.labels)


def own_logits(network: nn.Module, images: np.ndarray) -> torch.Tensor:
    with torch.no_grad():
        return network(torch.from_numpy(images) / 255)


def test_the_logits_are_the_networks_to_the_last_bit(detector, network, digits, unseen):
    before = copy.deepcopy(network.state_dict())
    expected = own_logits(network, unseen.inputs)
    ((evidence, _),) = detector.outputs(unseen.inputs, detector.layer)
    assert torch.equal(evidence[0], expected)
    predictions = detector.predict(unseen.inputs)
    np.testing.assert_array_equal(predictions.indices, expected.argmax(1))
    np.testing.assert_allclose(predictions.probabilities, expected.softmax(1), atol=1e-6)
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    assert not any(module.training for module in network.modules())


def test_hooks_do_not_stay(network, digits):
    def hooks():
        return sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in network.modules())

    before = hooks()
    detector = wrap(network, digits.inputs, digits.labels, score="combined")
    assert hooks() == before + 4  # one per layer that it looks at
    detector.forget_networks()
    assert hooks() == before


def test_false_alarms_and_outliers(detector, digits, unseen):
    flagged = detector.predict(unseen.inputs).is_ood.mean()
    assert flagged < 0.12
    for kind in ("mosaics", "drawn-strokes", "inverted"):
        strange = detector.score(made_up_outliers(unseen.inputs, kinds=[kind], seed=1)[kind])
        assert ood_metrics(detector.score(unseen.inputs), strange)["auroc"] > 0.9
    assert detector.provenance["accuracy"] > 0.95


def test_auto_takes_the_best_of_its_table(detector):
    table = {name: np.mean(list(row.values())) for name, row in detector.provenance["score_choice"].items()}
    assert table.keys() >= {*score_names()} - {"combined"}
    assert detector.scoring.name == max(table, key=table.get)


@pytest.mark.parametrize("name", score_names())
def test_every_score_can_be_asked_for_and_saved(name, network, digits, unseen):
    detector = wrap(network, digits.inputs, digits.labels, score=name)
    assert detector.scoring.name == name
    predictions = detector.predict(unseen.inputs)
    assert predictions.is_ood.mean() < 0.15
    again = Detector.from_bytes(detector.to_bytes(), network)
    np.testing.assert_array_equal(again.score(unseen.inputs), predictions.score)


def test_the_graph_goes_from_pixels_to_the_decision(network, digits, unseen, tmp_path):
    runtime = pytest.importorskip("onnxruntime")
    detector = wrap(network, digits.inputs, digits.labels, score="combined")
    predictions = detector.predict(unseen.inputs)
    export(detector, tmp_path / "graph.onnx")
    label, _, score, *_ = runtime.InferenceSession(tmp_path / "graph.onnx").run(None, {"inputs": unseen.inputs[:100]})
    np.testing.assert_array_equal(label, predictions.indices[:100])
    np.testing.assert_allclose(score, predictions.score[:100], rtol=1e-3, atol=1e-3)


def test_features_are_computed_once_for_all_scores(network, digits, monkeypatch):
    rows = []
    handle = network.register_forward_hook(lambda module, arguments, output: rows.append(len(output)))
    try:
        detector = wrap(network, digits.inputs, digits.labels)
    finally:
        handle.remove()
    kept = len(detector.examples)  # training inputs to show
    training, held_out = 1150, 144  # four fifths, a tenth
    # calibration, the reference of `combined`, the known side of the choice, eight kinds of outliers; and a few to look at
    assert sum(rows) < training + kept + (2 + 9) * held_out + 100


def test_held_out_inputs_are_calibrated_on(network, digits, unseen):
    detector = wrap(network, digits.inputs, digits.labels, score="energy", held_out=unseen.inputs)
    assert len(detector.threshold.scores) == len(unseen) - round(len(unseen) / 2)


def test_memory_is_bounded(network, digits):
    fitted = wrap(network, digits.inputs, digits.labels, score="nearest-neighbour", memory=100_000)
    (layer,) = fitted.scoring.densities.values()
    fitted.score(digits.inputs[:10])
    assert isinstance(layer.density, NearestNeighbourDensity)
    rows = layer.density.state()["codes"].shape[1]
    held = layer.density._rows.nbytes + sum(value.nbytes for value in layer.density.state().values())
    held += sum(_bytes(estimator) for search in layer.density._searches for estimator in search._estimators.values())
    assert 20 < rows < 1000
    assert held < 100_000
    assert MEMORY == 64 * 2**20


def _bytes(holder: object) -> int:
    return sum(value.nbytes for value in vars(holder).values() if isinstance(value, torch.Tensor))


def test_a_table_and_its_scores():
    moons = two_moons(1000)
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 2)).eval()
    detector = wrap(network, moons.inputs, moons.labels, score="nearest-neighbour")
    assert detector.layer == "2:input"
    assert detector.predict(moons.inputs).is_ood.mean() < 0.1


def test_a_program_is_kept_in_the_file(network, digits, unseen, tmp_path):
    content = save_program(network, torch.rand(3, 1, 8, 8))
    loaded, shape, safe = load_program(content)
    assert shape == (1, 8, 8)
    detector = wrap(loaded, digits.inputs, digits.labels, score="combined", program=safe)
    assert detector.layer == "0.2,0.6,0.7,3:input"
    detector.save(tmp_path / "d.safetensors")
    again = Detector.load(tmp_path / "d.safetensors")
    np.testing.assert_array_equal(again.score(unseen.inputs), detector.score(unseen.inputs))
    ((evidence, _),) = again.outputs(unseen.inputs)
    assert torch.equal(evidence[0], own_logits(network, unseen.inputs))
    export(again, tmp_path / "graph.pt2", "torch")
    with torch.no_grad():
        found = torch.export.load(tmp_path / "graph.pt2").module()(torch.from_numpy(unseen.inputs[:50]))
    np.testing.assert_allclose(found[2], detector.score(unseen.inputs[:50]), rtol=1e-4, atol=1e-4)


def test_a_python_network_must_be_passed_again(detector, network, tmp_path):
    detector.save(path := tmp_path / "d.safetensors")
    with pytest.raises(InputError, match="holds no network: pass the one that was wrapped"):
        Detector.load(path)
    other = copy.deepcopy(network)
    with torch.no_grad():
        other[1].bias[0] += 1
    with pytest.raises(InputError, match="other weights than the one that was wrapped"):
        Detector.load(path, other)


def test_members_continue_the_conversion(network, digits, unseen):
    detector = wrap(network, digits.inputs, digits.labels, members=2, epochs=3)
    assert (detector.model.method, detector.model.members) == ("be-snn", 2)
    assert (detector.predict(unseen.inputs).indices == unseen.labels).mean() > 0.8


class Tuple(nn.Module):
    def __init__(self, network):
        super().__init__()
        self.network = network

    def forward(self, x):
        return self.network(x), x


class FixedBatch(Tuple):
    def forward(self, x):
        return self.network(x.view(16, 1, 8, 8))


class Spoiled(Tuple):
    def forward(self, x):
        return self.network(x) + torch.nan


class OverTheBatch(Tuple):
    def forward(self, x):
        return self.network(x - x.mean(0))


class Random(Tuple):
    def forward(self, x):
        return self.network(x + torch.rand_like(x))


def training_mode(network):
    network = copy.deepcopy(network)
    network[0][1].train()
    return network


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (Tuple, "the network returns a tuple of 2 values: pass a module that returns the logits alone"),
        (FixedBatch, "the network takes a batch of 16 but not of 8"),
        (training_mode, "layer '0.1' (BatchNorm2d) is in training mode: call network.eval() first"),
        (Spoiled, "NaN or infinite logits"),
        (OverTheBatch, "the logits of an input change with the rest of its batch"),
        (Random, "different logits for the same inputs"),
        (lambda network: nn.Sequential(network[0], nn.Unflatten(1, (2, 64))), "the network returns torch.float32 [16, 2, 64]"),
        (lambda network: nn.Conv2d(3, 4, 3), "the network fails on torch.float32 inputs [16, 1, 8, 8]"),
        (lambda network: "network.pt", "the network is a str: pass a torch.nn.Module"),
        (lambda network: torch.compile(network, backend="eager"), "the network is compiled, which hides its layers: pass"),
        (
            lambda network: torch.jit.script(nn.Linear(2, 2)),
            "the network is scripted, which hides its layers: pass the module that it was made of",
        ),
    ],
)
def test_what_cannot_be_wrapped_gets_one_line(changed, message, network, digits):
    bad = changed(network)
    with pytest.raises(InputError, match=re.escape(message)) as caught:
        wrap(bad, digits.inputs, digits.labels)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"labels": None}, "labels are missing"),
        ({"labels": np.full(1438, 10)}, "label 10 does not fit a network with 10 logits"),
        ({"labels": np.zeros(5, int)}, "labels have shape [5]: pass one for each of the 1438 inputs"),
        ({"labels": np.full(1438, -1)}, "label -1 is negative"),
        ({"labels": np.zeros(1438)}, "labels have dtype float64"),
        ({"class_names": ["a"] * 11}, "a list of 11 class names does not fit a network with 10 logits"),
        ({"layers": ["0.99"]}, "layers='0.99': the network runs no layer of that name"),
        ({"score": "odin"}, "score 'odin' is unknown"),
        ({"mean": 0.5, "preprocessing": {}}, "both given"),
        ({"alpha": 0.0001}, "alpha"),
    ],
)
def test_wrong_arguments_get_one_line(arguments, message, network, digits):
    given = {"labels": digits.labels, "score": "energy", **arguments}
    with pytest.raises(InputError, match=re.escape(message)):
        wrap(network, digits.inputs, given.pop("labels"), **given)


def test_float_images_are_refused(network, digits):
    with pytest.raises(InputError, match=r"dtype float32: pass pixels from 0 to 255 as uint8"):
        wrap(network, digits.inputs.astype(np.float32), digits.labels)


def test_a_layer_that_is_the_same_for_all_inputs_does_not_count(network, digits):
    dead = nn.Sequential(nn.Sequential(nn.Conv2d(1, 2, 3, padding=1)), network).eval()
    nn.init.zeros_(dead[0][0].weight)
    nn.init.ones_(dead[0][0].bias)
    dead[0].register_forward_hook(lambda module, arguments, output: arguments[0])  # the network gets the images all the same
    detector = wrap(dead, list(digits.inputs), digits.labels, layers=["0.0", "1.3:input"], score="combined")
    assert detector.layer == "1.3:input"


def test_layers_can_be_named(network, digits):
    detector = wrap(network, digits.inputs, digits.labels, layers=["0.4", "3:input"], score="combined")
    assert detector.layer == "0.4,3:input"


def test_a_layer_with_nan_is_named(network, digits):
    class Logarithm(nn.Module):
        def forward(self, x):
            return x.log()

    odd = nn.Sequential(nn.Sequential(Logarithm(), nn.Softplus()), network).eval()
    odd[0].register_forward_hook(lambda module, arguments, output: arguments[0])  # the network gets the images all the same
    with pytest.raises(InputError, match=r"layer '0.0' returns NaN or infinite numbers for some images: leave it out"):
        wrap(odd, digits.inputs, digits.labels, layers=["0.0"], score="combined")
