"""The class-feature generator against the plain concatenation of one-hot and noise."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from besnn.layers import ones, random_sign, tile
from besnn.model import ClassFeatureGenerator


def naive(generator, noise):
    """Ψ on every (class, noise) pair by its two layers as they stand."""
    classes, samples = generator.num_classes, len(noise)
    one_hot = generator.class_scale * torch.eye(classes, dtype=noise.dtype)
    pairs = torch.cat([one_hot.repeat_interleave(samples, 0), noise.repeat(classes, 1)], dim=1)
    rows = generator.output(torch.relu(generator.hidden(tile(pairs, generator.members))))
    return rows.reshape(generator.members, classes, samples, -1)


@settings(deadline=None)
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


def test_gradients_equal_the_plain_concatenation():
    generator = ClassFeatureGenerator(3, 4, 2, 5, 6).double()
    noise = torch.randn(7, 5, dtype=torch.float64)
    weights = torch.randn(2, 3, 7, 4, dtype=torch.float64)
    parameters = list(generator.parameters())
    ours = torch.autograd.grad((weights * generator(noise)).sum(), parameters)
    plain = torch.autograd.grad((weights * naive(generator, noise)).sum(), parameters)
    for got, expected in zip(ours, plain, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-12)


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
