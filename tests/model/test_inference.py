import pytest
import torch

from besnn.errors import InputError
from besnn.model import InferenceNetwork, Preprocessing
from besnn.training import build_method

METHODS = ["be-snn", "softmax", "duq", "gaussian", "deep-ensemble", "batch-ensemble"]
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


def test_features_of_an_inner_layer(model, preprocessing):
    with torch.no_grad():
        evidence, inner = InferenceNetwork(model, preprocessing, "trunk")(PIXELS)
        torch.testing.assert_close(evidence, InferenceNetwork(model, preprocessing)(PIXELS)[0])
        x = preprocessing(PIXELS)
        extractors = model.extractors()
        rows = x.repeat(model.members // len(extractors), 1, 1, 1)  # each extractor's own members, member-major
        expected = torch.cat([extractor.trunk(rows) for extractor in extractors]).unflatten(0, (model.members, -1))
    assert inner.shape == expected.shape == (model.members, 6, 16)
    torch.testing.assert_close(inner, expected, rtol=1e-4, atol=1e-5)


def test_inner_features_of_any_shape_come_flat(model, preprocessing):
    with torch.no_grad():
        _, inner = InferenceNetwork(model, preprocessing, "trunk.0")(PIXELS)
    assert inner.shape == (model.members, 6, 4 * 8 * 8)


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


def test_classes_are_frozen_where_they_were_not(tiny_recipe, preprocessing):
    model, _ = build_method(tiny_recipe("backbone.hidden=[4]"), (1, 8, 8), 3)
    network = InferenceNetwork(model.eval(), preprocessing)
    assert model.frozen
    with torch.no_grad():
        assert torch.equal(network(PIXELS)[0], network(PIXELS)[0])


def test_a_layer_that_is_not_there(model, preprocessing):
    with pytest.raises(InputError, match="no layer 'attic'"):
        InferenceNetwork(model, preprocessing, "attic")
