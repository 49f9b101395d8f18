"""The generator against plain concatenation, distances against brute force, log probabilities against the plain formula."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from besnn.layers import ones, random_sign, tile
from besnn.model import ClassFeatureGenerator, class_moments, kernel_log_probabilities, squared_distances

SIZES = st.integers(1, 5)
few = settings(deadline=None, max_examples=20)


def brute_force(features, class_features):
    """mean_m ‖φ − e_m‖² over the whole [members, batch, classes, samples, d] tensor."""
    return (features[:, :, None, None, :] - class_features[:, None]).square().sum(-1).mean(-1)


with_gradients_or_not = pytest.mark.parametrize("gradients", [True, False], ids=["gradients", "no gradients"])


@with_gradients_or_not
@few
@given(members=SIZES, batch=st.integers(0, 4), classes=SIZES, samples=SIZES, dim=SIZES, scale=st.sampled_from([1e-8, 1.0, 1e8]))
def test_equals_brute_force(gradients, members, batch, classes, samples, dim, scale):
    features = scale * torch.randn(members, batch, dim, dtype=torch.float64)
    class_features = scale * torch.randn(members, classes, samples, dim, dtype=torch.float64)
    with torch.set_grad_enabled(gradients):
        distances = squared_distances(features, *class_moments(class_features))
    assert distances.shape == (members, batch, classes)
    torch.testing.assert_close(distances, brute_force(features, class_features), rtol=1e-12, atol=0)


@with_gradients_or_not
@few
@given(
    offset=st.floats(-1e6, 1e6), spread=st.sampled_from([0.0, 1e-6, 1.0]), dtype=st.sampled_from([torch.float32, torch.float64])
)
def test_never_negative_and_never_below_the_spread(gradients, offset, spread, dtype):
    class_features = offset + spread * torch.randn(2, 3, 10, 4, dtype=dtype)
    mean, variance = class_moments(class_features)
    with torch.set_grad_enabled(gradients):
        distances = squared_distances(mean[:, :1], mean, variance)  # the features stand on a class's mean
    assert bool((distances >= 0).all())
    assert torch.equal(distances[:, 0, 0], variance[:, 0])


@with_gradients_or_not
def test_keeps_digits_where_features_lie_on_the_class(gradients):
    """By ‖φ‖² + ‖μ‖² − 2φμ, float32 would give noise of size 1 here."""
    mean = torch.full((1, 1, 16), 1000.0)
    with torch.set_grad_enabled(gradients):
        distances = squared_distances(mean + 0.25, mean, torch.zeros(1, 1))
    assert distances.item() == 16 * 0.25**2


def test_moments():
    class_features = torch.randn(2, 3, 50, 4, dtype=torch.float64)
    mean, spread = class_moments(class_features)
    torch.testing.assert_close(mean, class_features.mean(2))
    torch.testing.assert_close(spread, class_features.var(2, correction=0).sum(-1))
    assert not class_moments(class_features[:, :, :1])[1].any()


@few
@given(members=SIZES, batch=SIZES, classes=st.integers(2, 5), scale=st.sampled_from([0.0, 1e-30, 1.0, 50.0]))
def test_log_probabilities_equal_the_plain_formula(members, batch, classes, scale):
    distances = scale * torch.rand(members, batch, classes, dtype=torch.float64)
    kernel = torch.exp(-distances).mean(0)
    expected = kernel / kernel.sum(-1, keepdim=True)
    torch.testing.assert_close(kernel_log_probabilities(distances).exp(), expected, rtol=1e-10, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("far", [0.0, 1e-30, 1e4, 1e30])
def test_picks_the_nearest_class_however_far(dtype, far):
    distances = torch.full((3, 4, 4), far, dtype=dtype) * 2
    distances[:, torch.arange(4), torch.arange(4)] = far
    log_probabilities = kernel_log_probabilities(distances)
    assert not log_probabilities.isnan().any()
    torch.testing.assert_close(log_probabilities.exp().sum(-1).float(), torch.ones(4), atol=0.02, rtol=0)
    if far >= 1:
        assert log_probabilities.argmax(-1).tolist() == [0, 1, 2, 3]


def test_infinite_distances():
    inf = math.inf
    distances = torch.tensor([[[inf, inf, inf], [inf, 1e4, inf], [0.0, inf, 0.0]]])
    probabilities = kernel_log_probabilities(distances).exp()
    torch.testing.assert_close(probabilities, torch.tensor([[1 / 3, 1 / 3, 1 / 3], [0, 1, 0], [0.5, 0, 0.5]]))


def test_one_confident_member_outweighs_lost_ones():
    """The kernel is averaged before it is normalised: a member that is far from all classes has no say."""
    distances = torch.tensor([[[0.1, 5.0]], [[900.0, 800.0]]])
    assert kernel_log_probabilities(distances).argmax(-1).item() == 0


# --- the generator ---


def naive(generator, noise):
    """Ψ on every (class, noise) pair by its two layers as they stand."""
    classes, samples = generator.num_classes, len(noise)
    one_hot = generator.class_scale * torch.eye(classes, dtype=noise.dtype)
    pairs = torch.cat([one_hot.repeat_interleave(samples, 0), noise.repeat(classes, 1)], dim=1)
    rows = generator.output(torch.relu(generator.hidden(tile(pairs, generator.members))))
    return rows.reshape(generator.members, classes, samples, -1)


@few
@given(
    classes=st.integers(1, 4),
    dim=st.integers(1, 4),
    members=st.integers(1, 3),
    noise_dim=st.integers(1, 4),
    hidden=st.integers(1, 5),
    samples=st.integers(1, 4),
    scale=st.sampled_from([0.0, 1.0, 10.0]),
)
def test_equals_the_plain_concatenation(classes, dim, members, noise_dim, hidden, samples, scale):
    generator = ClassFeatureGenerator(classes, dim, members, noise_dim, hidden, scale, random_sign()).double()
    noise = torch.randn(samples, noise_dim, dtype=torch.float64)
    features = generator(noise)
    assert features.shape == (members, classes, samples, dim)
    torch.testing.assert_close(features, naive(generator, noise), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("classes", [slice(0, 2), slice(1, 3), slice(2, 9)])
def test_some_classes_features_are_those_among_all(classes):
    generator = ClassFeatureGenerator(3, 4, 2, 5, 6).double()
    noise = torch.randn(7, 5, dtype=torch.float64)
    torch.testing.assert_close(generator(noise, classes), generator(noise)[:, classes], rtol=1e-12, atol=1e-12)


def test_initialiser_reaches_both_layers():
    generator = ClassFeatureGenerator(3, 4, 2, 5, 6, init=ones())
    for layer in (generator.hidden, generator.output):
        assert bool((layer.r == 1).all())
        assert bool((layer.s == 1).all())


@pytest.mark.parametrize("scale", [1.0, 10.0])
def test_class_scale_is_what_the_classes_differ_by(scale):
    generator = ClassFeatureGenerator(2, 4, 1, 3, 6, scale, ones()).double()
    generator.hidden.bias.data.fill_(1000.0)  # far from ReLU's kink the generator is affine
    difference = generator(torch.zeros(1, 3, dtype=torch.float64)).diff(dim=1).flatten()
    weight = generator.output.weight @ generator.hidden.weight[:, :2]
    torch.testing.assert_close(difference, scale * (weight[:, 1] - weight[:, 0]), rtol=1e-9, atol=1e-9)
