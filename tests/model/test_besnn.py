"""The BE-SNN as a whole."""

import copy
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from besnn.errors import InputError
from besnn.layers import BatchEnsembleLinear, MemberBatchNorm1d, batch_ensemble, members_of, tile
from besnn.model import (
    BESNN,
    InferenceNetwork,
    Preprocessing,
    class_moments,
    fashion_convnet,
    mlp,
)
from besnn.model.besnn import FROZEN_AT_ONCE


def inputs(batch=5):
    return torch.randn(batch, 3, dtype=torch.float64)


def by_brute_force(features, class_features):
    """d̄ from its definition, sample by sample."""
    return (features[:, :, None, None, :] - class_features[:, None]).square().sum(-1).mean(-1)


@settings(deadline=None, max_examples=15)
@given(
    members=st.integers(1, 4),
    batch=st.integers(0, 4),
    classes=st.integers(2, 4),
    samples=st.integers(1, 4),
    dim=st.integers(1, 4),
)
def test_shapes_and_brute_force(members, batch, classes, samples, dim):
    model = BESNN(mlp((3,), (4,), dim), classes, dim, members, noise_dim=2, hidden_dim=3, samples=samples).double()
    x = inputs(batch)
    features = model.features(x)
    assert features.shape == (members, batch, dim)
    torch.manual_seed(1)
    distances = model.distances(x)
    torch.manual_seed(1)
    class_features = model.class_features()
    assert class_features.shape == (members, classes, samples, dim)
    torch.testing.assert_close(distances, by_brute_force(features, class_features), rtol=1e-10, atol=1e-12)
    log_probabilities = model.log_probabilities(distances)
    assert log_probabilities.shape == (batch, classes)
    torch.testing.assert_close(log_probabilities.exp().sum(-1), torch.ones(batch, dtype=torch.float64))


def test_features_are_the_members_own(build):
    model, x = build(), inputs()
    rows = model.feature_extractor(tile(x, 3))
    assert torch.equal(model.features(x).flatten(0, 1), rows)
    assert torch.equal(model.feature_rows(tile(x, 3)), model.features(x))
    assert not torch.allclose(model.features(x)[0], model.features(x)[1])


def test_class_features_follow_the_generator_of_random_numbers(build):
    model = build()
    draw = lambda seed: model.class_features(6, torch.Generator().manual_seed(seed))  # noqa: E731
    assert torch.equal(draw(1), draw(1))
    assert not torch.equal(draw(1), draw(2))
    assert draw(1).shape == (3, 4, 6, 6)
    noise = torch.randn(6, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    assert torch.equal(draw(1), model.generator(noise))


def test_class_features_without_samples(build):
    with pytest.raises(InputError, match="samples=0: draw at least one feature per class"):
        build().class_features(0)


# --- frozen and fresh class features ---


def test_fresh_class_features_vary_and_frozen_ones_do_not(build):
    model, x = build(), inputs()
    assert not model.frozen
    assert not torch.equal(model.distances(x), model.distances(x))
    model.freeze_classes()
    assert model.frozen
    assert torch.equal(model.distances(x), model.distances(x))
    assert model.distances(x).requires_grad  # through the features


def test_freezing_depends_on_its_seed_alone(build):
    model, x = build(), inputs()
    twin = copy.deepcopy(model)
    model.freeze_classes(32, seed=1)
    torch.randn(7)
    twin.freeze_classes(32, seed=1)
    assert torch.equal(model.distances(x), twin.distances(x))
    twin.freeze_classes(32, seed=2)
    assert not torch.equal(model.distances(x), twin.distances(x))


@pytest.mark.parametrize("classes", [FROZEN_AT_ONCE - 1, FROZEN_AT_ONCE, 2 * FROZEN_AT_ONCE + 1])
def test_frozen_moments_are_those_of_all_classes_drawn_at_once(classes):
    model = BESNN(mlp((3,), (4,), 5), classes, 5, members=2, noise_dim=2, hidden_dim=3).double()
    model.freeze_classes(16, seed=3)
    mean, spread = class_moments(model.class_features(16, torch.Generator().manual_seed(3)))
    torch.testing.assert_close(model.class_mean, mean, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(model.class_spread, spread, rtol=1e-12, atol=1e-12)


def test_freezing_leaves_the_global_random_numbers_alone(build):
    model = build()
    state = torch.get_rng_state()
    model.freeze_classes()
    assert torch.equal(torch.get_rng_state(), state)


def test_frozen_moments_converge_to_the_mean_of_fresh_distances(build):
    model, x = build(samples=64), inputs()
    model.freeze_classes(50_000)
    frozen = model.distances(x).detach()
    model.train()
    with torch.no_grad():
        fresh = torch.stack([model.distances(x) for _ in range(100)])
    error = fresh.std(0) / math.sqrt(len(fresh))
    assert float(((fresh.mean(0) - frozen) / error).abs().max()) < 5


def test_training_drops_frozen_classes_and_evaluation_does_not(build):
    model = build()
    model.freeze_classes()
    assert model.eval().frozen
    assert not model.train().frozen
    model.freeze_classes()
    assert not nn.Sequential(model).train()[0].frozen


@pytest.mark.parametrize("nested", [False, True])
def test_frozen_state_survives_saving_and_loading(build, nested):
    source, target, x = build(), build(), inputs()
    source.freeze_classes(16)
    if nested:
        nn.Sequential(target).load_state_dict(nn.Sequential(source).state_dict())
    else:
        target.load_state_dict(source.state_dict())
    assert target.frozen
    assert torch.equal(target.distances(x), source.distances(x))


def test_unfrozen_state_drops_frozen_classes(build):
    """Frozen moments of other weights would be silently wrong."""
    source, target = build(), build()
    target.freeze_classes()
    target.load_state_dict(source.state_dict())
    assert not target.frozen
    assert "class_mean" not in target.state_dict()


def test_half_a_frozen_state(build):
    source, target = build(), build()
    source.freeze_classes()
    state = source.state_dict()
    del state["class_spread"]
    with pytest.raises(RuntimeError, match=r"Missing key.*class_spread"):
        target.load_state_dict(state)


def test_frozen_state_takes_the_models_dtype(build):
    source, target = build(), build().float()
    source.freeze_classes()
    target.load_state_dict(source.state_dict())
    assert target.class_mean.dtype == torch.float32
    assert target.distances(inputs().float()).dtype == torch.float32


# --- the length scale ---


def fresh_distances(model, x, seed=1):
    torch.manual_seed(seed)
    return model.distances(x)


def fresh_class_features(model, seed=1):
    torch.manual_seed(seed)
    return model.class_features()


@pytest.mark.parametrize("gradients", [True, False])  # distances are computed in another way where there are none
@pytest.mark.parametrize("length_scale", [0.3, 5])
def test_distances_are_divided_by_the_squared_length_scale(build, length_scale, gradients):
    model, x = build(length_scale=length_scale), inputs()
    with torch.set_grad_enabled(gradients):
        features, class_features = model.features(x), fresh_class_features(model)
        fresh = fresh_distances(model, x)
        expected = by_brute_force(features, class_features) / length_scale**2
        torch.testing.assert_close(fresh, expected, rtol=1e-10, atol=1e-12)
        assert torch.equal(model.distances_to(features, class_features), fresh)

        model.freeze_classes(16, seed=3)
        class_features = model.class_features(16, torch.Generator().manual_seed(3))
        frozen = model.evidence(features)
        expected = by_brute_force(features, class_features) / length_scale**2
        torch.testing.assert_close(frozen, expected, rtol=1e-10, atol=1e-12)
        assert torch.equal(model.distances_to(features, class_features), frozen)


def test_on_a_sphere_only_directions_count(build):
    model, x = build(sphere=True, length_scale=0.3), inputs()
    raw = model.feature_extractor(tile(x, 3)).unflatten(0, (3, -1))
    class_features = fresh_class_features(model)
    torch.testing.assert_close(class_features.norm(dim=-1), torch.ones(3, 4, 8, dtype=torch.float64))
    cosines = torch.einsum("nbd,ncmd->nbcm", raw / raw.norm(dim=-1, keepdim=True), class_features)
    torch.testing.assert_close(fresh_distances(model, x), (2 - 2 * cosines).mean(-1) / 0.09)
    model.freeze_classes(16)
    evidence, _ = InferenceNetwork(model.float(), Preprocessing((3,), torch.zeros(3), torch.ones(3)))(x.float())
    torch.testing.assert_close(evidence, model.distances(x.float()), rtol=1e-4, atol=1e-4)


def test_weights_belong_to_their_length_scale():
    def model(**settings):
        return BESNN(mlp((2,), (8,), 8), num_classes=2, feature_dim=8, members=2, noise_dim=4, hidden_dim=8, **settings)

    one, five = model(), model(length_scale=5)
    assert "length_scale" not in one.state_dict()  # files from before there was one
    five.load_state_dict(model(length_scale=5).state_dict())
    one.load_state_dict(model().state_dict())
    with pytest.raises(RuntimeError, match="the weights are for length_scale=1, but the model has 5"):
        five.load_state_dict(one.state_dict())
    with pytest.raises(RuntimeError, match="the weights are for length_scale=5, but the model has 1"):
        one.load_state_dict(five.state_dict())


@pytest.mark.parametrize("length_scale", [0, -2.0, 1e4, math.nan])
def test_a_wrong_length_scale(build, length_scale):
    with pytest.raises(InputError, match=f"length_scale={length_scale}: pass a number from 0.001 to 1000") as raised:
        build(length_scale=length_scale)
    assert "\n" not in str(raised.value)


# --- the feature extractor ---


def test_plain_extractor_is_converted_and_left_alone():
    plain = fashion_convnet()
    model = BESNN(plain, 10, 256, members=2, norm="member", noise_dim=4, hidden_dim=4)
    assert members_of(plain) is None
    assert members_of(model.feature_extractor) == 2
    assert any(type(module).__name__ == "MemberBatchNorm2d" for module in model.modules())


def test_converted_extractor_is_taken_as_it_is():
    extractor = batch_ensemble(nn.Sequential(nn.Linear(3, 6), nn.BatchNorm1d(6)), 2, norm="member")
    model = BESNN(extractor, 4, 6, members=2, noise_dim=4, hidden_dim=4)
    assert model.feature_extractor is extractor
    assert isinstance(model.feature_extractor[1], MemberBatchNorm1d)
    assert model.distances(torch.rand(5, 3)).shape == (2, 5, 4)


def test_members_mismatch():
    with pytest.raises(InputError, match="the feature extractor has 2 members but members=4: make them equal"):
        BESNN(BatchEnsembleLinear(3, 6, members=2), 4, 6, members=4)


@pytest.mark.parametrize(
    "extractor", [mlp((3,), (5,), 7), nn.Conv1d(3, 6, 1), nn.Sequential(nn.Linear(3, 6), nn.Unflatten(1, (2, 3)))]
)
def test_extractor_with_the_wrong_output(extractor):
    model = BESNN(extractor, 4, 6, members=2, noise_dim=4, hidden_dim=4)
    x = torch.rand(5, 3, 4) if isinstance(extractor, nn.Conv1d) else torch.rand(5, 3)
    with pytest.raises(InputError, match=r"feature extractor returned shape \[10, .*expected \[rows, feature_dim=6\]"):
        model.features(x)


# --- bad input ---

NUMBERS = torch.rand(5, 3, dtype=torch.float64)
BAD_INPUTS = {
    "nan": (NUMBERS.clone().fill_(math.nan), "15 values that are NaN or infinite"),
    "inf": (torch.tensor([[1.0, math.inf, 0.0]]), "1 values that are NaN or infinite"),
    "integers": (torch.ones(5, 3, dtype=torch.int64), r"dtype torch.int64: convert them with inputs.float\(\)"),
    "bytes": (torch.ones(5, 3, dtype=torch.uint8), "dtype torch.uint8"),
    "vector": (torch.ones(3), r"shape \[3\]: the first axis is the batch"),
    "scalar": (torch.tensor(1.0), r"shape \[\]"),
    "array": (np.ones((5, 3)), "inputs are a ndarray: convert them with torch.as_tensor"),
    "width": (NUMBERS[:, :1], r"input has shape \[15, 1\] but the layer takes a batch with 3 channels"),
    "dtype": (NUMBERS.float(), "input has dtype torch.float32 but the layer torch.float64"),
}


@pytest.mark.parametrize(("x", "message"), BAD_INPUTS.values(), ids=BAD_INPUTS.keys())
def test_bad_inputs(build, x, message):
    model = build()
    for use in (model.features, model.distances, model):
        with pytest.raises(InputError, match=message) as raised:
            use(x)
        assert "\n" not in str(raised.value)


@pytest.mark.parametrize("name", ["num_classes", "feature_dim", "members", "noise_dim", "hidden_dim", "samples"])
def test_bad_sizes(build, name):
    with pytest.raises(InputError, match=f"{name}=0: give a whole number"):
        build(feature_extractor=nn.Linear(3, 6), **{name: 0})


# --- use ---


def test_run_for_inference_its_classes_are_frozen(build):
    model = build().float()
    InferenceNetwork(model, Preprocessing((3,), torch.zeros(3), torch.ones(3)))
    assert model.frozen
    mean = model.class_mean
    InferenceNetwork(model, Preprocessing((3,), torch.zeros(3), torch.ones(3)))
    assert model.class_mean is mean  # a draw that was made is kept
