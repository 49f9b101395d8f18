import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from besnn.baselines import DeepEnsemble, SoftmaxClassifier
from besnn.errors import InputError
from besnn.layers.folding.fuse import ConvReLU, FirstBlock
from besnn.model import BESNN, InferenceNetwork, Preprocessing, fashion_convnet
from besnn.model.inference import CPU_IMAGES, GPU_TYPE
from besnn.training import build_method

METHODS = ["be-snn", "softmax", "duq", "gaussian", "deep-ensemble", "batch-ensemble", "{name: be-snn, length_scale: 3}"]
PIXELS = torch.randint(0, 256, (6, 1, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


@pytest.fixture(params=METHODS)
def model(request, tiny_recipe):
    torch.manual_seed(0)
    model, _ = build_method(tiny_recipe(f"method={request.param}", "backbone.hidden=[4, 4]"), (1, 8, 8), 3)
    for _ in range(3):  # BatchNorm statistics that are not the initial ones
        model.features(torch.randn(8, 1, 8, 8))
    model.eval()
    model.freeze_classes(samples=16)
    return model


@pytest.fixture
def preprocessing():
    return Preprocessing.fit(PIXELS)


def test_evidence_and_features_are_the_models(model, preprocessing):
    with torch.no_grad():
        evidence, features = InferenceNetwork(model, preprocessing)(PIXELS)
        plain = model.features(preprocessing(PIXELS))
        torch.testing.assert_close(features, plain, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(evidence, model.evidence(plain), rtol=1e-4, atol=1e-4)


def test_features_of_a_layer(model, preprocessing):
    with torch.no_grad():
        evidence, inner = InferenceNetwork(model, preprocessing, "trunk")(PIXELS)
        torch.testing.assert_close(evidence, InferenceNetwork(model, preprocessing)(PIXELS)[0])
        x = preprocessing(PIXELS)
        extractors = model.extractors()
        rows = x.repeat(model.members // len(extractors), 1, 1, 1)  # each extractor's own members, member-major
        expected = torch.cat([extractor.trunk(rows) for extractor in extractors]).unflatten(0, (model.members, -1))
    assert inner.shape == expected.shape == (model.members, 6, 16)
    torch.testing.assert_close(inner, expected, rtol=1e-4, atol=1e-5)


def test_a_layers_map_is_averaged_over_its_places(model, preprocessing):
    with torch.no_grad():
        _, inner = InferenceNetwork(model, preprocessing, "trunk.0")(PIXELS)
        extractors = model.extractors()
        rows = preprocessing(PIXELS).repeat(model.members // len(extractors), 1, 1, 1)
        maps = torch.cat([extractor.trunk[0](rows) for extractor in extractors])  # [members · batch, 4, 8, 8]
    torch.testing.assert_close(inner, maps.sum((2, 3)).view(model.members, 6, 4) / 64, rtol=1e-4, atol=1e-5)


def by_hand(model, x, layers):
    """Unit vectors of each layer, side by side: from hooks on the model as it was trained, member-major rows."""
    seen = {layer: [] for layer in layers}
    extractors = model.extractors()
    rows = x.repeat(model.members // len(extractors), 1, 1, 1)
    for extractor in extractors:
        for layer in layers:
            handle = extractor.get_submodule(layer).register_forward_hook(lambda *call, to=seen[layer]: to.append(call[2]))
            extractor(rows)
            handle.remove()
    parts = []
    for outputs in map(torch.cat, seen.values()):
        vectors = F.adaptive_avg_pool2d(outputs, 2).flatten(1) if outputs.ndim == 4 else outputs
        by_member = vectors.view(model.members, len(x), -1)
        parts.append(by_member / by_member.square().sum(-1, keepdim=True).sqrt())
    return torch.cat(parts, dim=-1)


def test_several_layers_side_by_side(model, preprocessing):
    layers = ("head", "trunk.2", "trunk.0")
    model, preprocessing = copy.deepcopy(model).double(), copy.deepcopy(preprocessing).double()
    raw = many_images(CPU_IMAGES + 3)
    with torch.no_grad():
        network = InferenceNetwork(model, preprocessing, "+".join(layers))
        evidence, features = network(raw)
        torch.testing.assert_close(evidence, model(preprocessing(raw)))
        torch.testing.assert_close(features, by_hand(model, preprocessing(raw), layers))
        assert network(raw[:0])[1].shape == (model.members, 0, features.shape[2])


class Untraceable(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(72, 4))

    def forward(self, x):
        return super().forward(x if bool(x.sum() > 0) else x + 0)


@pytest.mark.parametrize("members", [None, 3])
def test_several_layers_of_a_network_that_cannot_be_traced(members, preprocessing):
    torch.manual_seed(0)
    network = Untraceable()
    model = (
        SoftmaxClassifier(network, num_classes=3, feature_dim=4)
        if members is None
        else BESNN(network, 3, 4, members=members, noise_dim=4, hidden_dim=8)
    )
    model, preprocessing = model.double().eval(), preprocessing.double()
    with torch.no_grad():
        evidence, features = InferenceNetwork(model, preprocessing, "1+3")(PIXELS)
        torch.testing.assert_close(evidence, model(preprocessing(PIXELS)))
        torch.testing.assert_close(features, by_hand(model, preprocessing(PIXELS), ["1", "3"]))


def test_the_model_is_left_as_it_was(model, preprocessing):
    before = {name: value.clone() for name, value in model.state_dict().items()}
    network = InferenceNetwork(model, preprocessing)
    with torch.no_grad():
        for parameter in network.extractors.parameters():
            parameter.zero_()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_gradients_reach_the_input(model, preprocessing):
    raw = PIXELS.float().requires_grad_()
    evidence, _ = InferenceNetwork(model, preprocessing)(raw)
    evidence.sum().backward()
    assert raw.grad is not None
    assert raw.grad.abs().sum() > 0


def test_an_unknown_layer(model, preprocessing):
    with pytest.raises(InputError, match="no layer 'attic'"):
        InferenceNetwork(model, preprocessing, "attic")
    with pytest.raises(InputError, match="no layer 'attic'"):
        InferenceNetwork(model, preprocessing, "trunk+attic")


def many_images(count):
    return torch.randint(0, 256, (count, 1, 8, 8), dtype=torch.uint8)


def test_parts_of_a_large_batch_are_put_together_in_order(model, preprocessing):
    raw = many_images(2 * CPU_IMAGES + 5)
    network = InferenceNetwork(model, preprocessing)
    with torch.no_grad():
        expected = model(preprocessing(raw))
        torch.testing.assert_close(network(raw)[0], expected, rtol=1e-4, atol=1e-4)
        assert network(raw[:0])[0].shape == (model.members, 0, 3)


def test_holds_no_second_copy_of_the_extractor(model, preprocessing):
    network = InferenceNetwork(model, preprocessing)
    extractor_weights = sum(p.numel() for extractor in model.extractors() for p in extractor.parameters())
    all_weights = sum(p.numel() for p in model.parameters())
    assert sum(p.numel() for p in network.model.parameters()) == all_weights - extractor_weights


class Unknown(nn.Module):
    """A network that cannot be converted."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 64))

    def forward(self, x):
        return torch.tanh(x.flatten(1) @ self.weight.t())


def test_a_network_that_cannot_be_converted_runs_as_it_is():
    model = SoftmaxClassifier(Unknown(), num_classes=3, feature_dim=4).eval()
    preprocessing = Preprocessing.fit(PIXELS)
    with torch.no_grad():
        evidence, _ = InferenceNetwork(model, preprocessing)(PIXELS)
        torch.testing.assert_close(evidence, model(preprocessing(PIXELS)))


def test_a_deep_copy_is_independent(model, preprocessing):
    network = InferenceNetwork(model, preprocessing)
    twin = copy.deepcopy(network)
    with torch.no_grad():
        expected = network(PIXELS)[0]
        for parameter in network.extractors.parameters():
            parameter.zero_()
        torch.testing.assert_close(twin(PIXELS)[0], expected)


def in_turn(upright, mirrored):
    """Outputs `[members, ...]`, those of every second member for mirror images."""
    return torch.stack([(upright, mirrored)[member % 2][member] for member in range(len(upright))])


class TestMirrorImages:
    """Every second member gets mirror images; the expected outputs come from the trained networks."""

    @pytest.fixture(params=["be-snn", "deep-ensemble", "batch-ensemble"])
    def build(self, request, tiny_recipe):
        def model(members):
            torch.manual_seed(0)
            method = f"method={{name: {request.param}, members: {members}, mirror: true}}"
            recipe = tiny_recipe(method, "training.augment.flip=true", "backbone.hidden=[4, 4]")
            model, _ = build_method(recipe, (1, 8, 8), 3)
            model.features(torch.randn(8, 1, 8, 8))
            model.double().eval().freeze_classes(samples=16)
            return model

        return model

    @pytest.mark.parametrize("members", [1, 3])
    @torch.no_grad()
    def test_evidence_and_features_of_several_layers(self, members, build, preprocessing):
        layers = ("head", "trunk.2", "trunk.0")
        model, preprocessing, raw = build(members), preprocessing.double(), many_images(CPU_IMAGES + 3)
        x = preprocessing(raw)
        evidence, features = InferenceNetwork(model, preprocessing, "+".join(layers))(raw)
        torch.testing.assert_close(features, in_turn(*(by_hand(model, view, layers) for view in (x, x.flip(3)))))
        torch.testing.assert_close(evidence, model(x))
        model.mirror = False
        torch.testing.assert_close(evidence, in_turn(model(x), model(x.flip(3))))
        assert torch.allclose(evidence, model(x)) == (members == 1)

    def test_with_gradients_it_is_the_same(self, build, preprocessing):
        network = InferenceNetwork(build(3), preprocessing.double())
        evidence, features = network(PIXELS)
        with torch.no_grad():
            torch.testing.assert_close(network(PIXELS), (evidence, features))

    @pytest.mark.parametrize("kind", ["be-snn", "deep-ensemble"])
    @torch.no_grad()
    def test_networks_that_cannot_be_traced(self, kind, preprocessing):
        model = (
            BESNN(Untraceable(), 3, 4, members=3, noise_dim=4, hidden_dim=8, mirror=True)
            if kind == "be-snn"
            else DeepEnsemble([Untraceable() for _ in range(3)], 3, 4, mirror=True)
        )
        model, preprocessing = model.double().eval(), preprocessing.double()
        x = preprocessing(PIXELS)
        evidence, features = InferenceNetwork(model, preprocessing, "1+3")(PIXELS)
        torch.testing.assert_close(evidence, model(x))
        torch.testing.assert_close(features, in_turn(*(by_hand(model, view, ["1", "3"]) for view in (x, x.flip(3)))))


class TestCpuPath:
    """Convolutions by oneDNN's fused operation, beside the plain network."""

    @pytest.fixture
    def network(self):
        torch.manual_seed(0)
        model = BESNN(fashion_convnet(widths=(16, 4, 4)), 3, 256, members=2, noise_dim=4, hidden_dim=8).eval()
        return InferenceNetwork(model, Preprocessing((1, 28, 28), torch.tensor([70.0]), torch.tensor([90.0])), "trunk.3+trunk")

    @pytest.fixture
    def raw(self):
        return torch.randint(0, 256, (5, 1, 28, 28), dtype=torch.uint8)

    @torch.no_grad()
    def test_is_fused_and_equal(self, network, raw):
        got, expected = network(raw), network.outputs(raw, network.extractors)
        assert any(isinstance(module, ConvReLU) for packed in network._packed for module in packed.modules())
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)
        assert {id(each) for packed in network._packed for each in packed.parameters()} <= {*map(id, network.parameters())}

    @torch.no_grad()
    def test_copies_are_fused_too(self, network, raw):
        expected = network(raw)
        copied = copy.deepcopy(network)
        assert all(torch.equal(*pair) for pair in zip(copied(raw), expected, strict=True))

    @torch.no_grad()
    def test_is_not_used_if_it_gives_different_results(self, network, raw, monkeypatch):
        monkeypatch.setattr(ConvReLU, "forward", lambda self, x: 1.1 * torch.relu(self.conv(x)))
        assert torch.equal(network(raw)[0], network.outputs(raw, network.extractors)[0])
        assert network._packed == ()

    def test_with_gradients_the_plain_network_runs(self, network, raw):
        network(raw)
        assert network._packed is None


class TestGpuPath:
    """The GPU path on a CPU: the same modules, with plain PyTorch instead of the kernels."""

    def model(self, **options):
        torch.manual_seed(0)
        return BESNN(fashion_convnet(widths=(16, 4, 4)), 3, 256, members=2, noise_dim=4, hidden_dim=8, **options).eval()

    @pytest.fixture
    def network(self):
        return InferenceNetwork(self.model(), Preprocessing((1, 28, 28), torch.tensor([70.0]), torch.tensor([90.0])))

    @pytest.fixture
    def raw(self):
        return torch.randint(0, 256, (5, 1, 28, 28), dtype=torch.uint8)

    @torch.no_grad()
    def test_is_fused_and_close(self, network, raw):
        evidence, features = network._on_gpu(raw)
        assert any(isinstance(module, ConvReLU) for fused in network._fused for module in fused.modules())
        assert evidence.dtype == features.dtype == torch.float32
        expected, _ = network(raw)
        assert 0 < (evidence - expected).norm() / expected.norm() < 0.02
        assert torch.equal(evidence, network._on_gpu(raw)[0])

    @torch.no_grad()
    def test_with_mirror_images_it_is_fused_and_close(self, network, raw):
        mirrored = InferenceNetwork(self.model(mirror=True), network.preprocessing, "trunk.3+trunk")
        evidence, features = mirrored._on_gpu(raw)
        assert any(isinstance(module, FirstBlock) for fused in mirrored._fused for module in fused.modules())
        expected = in_turn(network(raw)[0], network(raw.flip(3))[0])
        assert 0 < (evidence - expected).norm() / expected.norm() < 0.02
        assert 0 < (features - mirrored(raw)[1]).norm() / features.norm() < 0.02

    @torch.no_grad()
    def test_weights_of_products_are_kept_in_its_dtype(self, network, raw):
        with torch.inference_mode():
            network._on_gpu(raw)
        assert not any(parameter.is_inference() for fused in network._fused for parameter in fused.parameters())
        types = {parameter.dtype for fused in network._fused for parameter in fused.parameters()}
        assert types == {GPU_TYPE}
        assert {parameter.dtype for parameter in network.extractors.parameters()} == {torch.float32}

    @torch.no_grad()
    def test_is_not_used_if_the_machine_cannot_run_it(self, network, raw, monkeypatch):
        def fail(self, x):
            raise RuntimeError("no such unit")

        monkeypatch.setattr(ConvReLU, "forward", fail)
        assert torch.equal(network._on_gpu(raw)[0], network(raw)[0])
        assert network._fused == ()

    @torch.no_grad()
    def test_is_not_used_if_it_gives_different_results(self, network, raw, monkeypatch):
        monkeypatch.setattr(ConvReLU, "forward", lambda self, x: 2 * torch.relu(self.conv(x)))
        assert torch.equal(network._on_gpu(raw)[0], network(raw)[0])
        assert network._fused == ()

    @torch.no_grad()
    def test_double_precision_stays(self, network, raw):
        network.double()
        assert network._on_gpu(raw)[0].dtype == torch.float64
        assert network._fused == ()

    @torch.no_grad()
    def test_moving_the_network_drops_its_fused_form(self, network, raw):
        network._on_gpu(raw)
        network.to("cpu")
        assert network._fused is None

    @pytest.mark.skipif(torch.cuda.is_available(), reason="with a GPU members run in parallel")
    @torch.no_grad()
    def test_members_run_one_after_the_other_if_not_in_parallel(self, network, raw):
        expected, tried = network._on_gpu(raw), []

        def graphs(plain, example):
            tried.append(plain)
            outputs = plain(example)  # without a GPU there are no streams
            return lambda batch: outputs

        network._graphs = graphs
        recording = network._record(network._on_gpu, raw)
        assert tried == [network._members_in_parallel, network._on_gpu]
        assert torch.equal(recording(raw)[0], expected[0])
