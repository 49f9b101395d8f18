import re

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from sklearn.preprocessing import StandardScaler

from besnn.errors import InputError
from besnn.model.preprocessing import FARTHEST, Preprocessing

tables = hnp.arrays(np.float32, (7, 3), elements=st.floats(-1000, 1000, width=32))


@given(tables)
def test_tables_against_scikit_learn(rows):
    scaler = StandardScaler().fit(rows.astype(np.float64))
    preprocessing = Preprocessing.fit(torch.from_numpy(rows))
    np.testing.assert_allclose(preprocessing.mean.numpy(), scaler.mean_, rtol=1e-5, atol=1e-5)
    deviation = rows.astype(np.float64).std(axis=0)
    varying = (rows.max(axis=0) > rows.min(axis=0)) & (deviation.astype(np.float32) > 0)
    np.testing.assert_allclose(preprocessing.std.numpy()[varying], deviation[varying], rtol=1e-5, atol=1e-30)
    assert (preprocessing.std.numpy()[~varying] == 1).all()


def test_images_by_channel_in_many_chunks():
    images = torch.randint(0, 256, (9000, 3, 2, 2), dtype=torch.uint8)
    preprocessing = Preprocessing.fit(images)
    by_channel = images.double().movedim(1, 0).flatten(1)
    torch.testing.assert_close(preprocessing.mean, by_channel.mean(1).float())
    torch.testing.assert_close(preprocessing.std, by_channel.std(1, correction=0).float())
    scaled = preprocessing(images)
    assert scaled.dtype == torch.float32
    torch.testing.assert_close(scaled.mean((0, 2, 3)), torch.zeros(3), atol=1e-4, rtol=0)
    torch.testing.assert_close(scaled.std((0, 2, 3), correction=0), torch.ones(3), atol=1e-4, rtol=0)


def test_a_constant_column_keeps_its_unit():
    rows = torch.full((1000, 1), 0.1)  # the mean of so many is not exactly 0.1
    preprocessing = Preprocessing.fit(rows)
    assert preprocessing.std.item() == 1
    assert preprocessing(torch.tensor([[2.1]])).item() == pytest.approx(2.0)


def test_a_column_far_from_zero_keeps_its_spread():
    rows = torch.tensor([[1.0e6], [1.0e6 + 1], [1.0e6 + 2]])
    assert Preprocessing.fit(rows).std.item() == pytest.approx((2 / 3) ** 0.5)


def test_distant_inputs_stay_finite_and_in_order():
    preprocessing = Preprocessing.fit(torch.tensor([[0.0], [2.0]]))
    far = preprocessing(torch.tensor([[-torch.inf], [-3e38], [-100.0], [100.0], [3e38], [torch.inf]]))
    assert far.flatten().tolist() == [-FARTHEST, -FARTHEST, -101, 99, FARTHEST, FARTHEST]


def test_another_shape():
    preprocessing = Preprocessing.fit(torch.rand(5, 3))
    with pytest.raises(InputError, match=r"shape \[4\], but the model was trained on \[3\]"):
        preprocessing(torch.rand(5, 4))


@pytest.mark.parametrize(
    ("mean", "std"), [(torch.zeros(2), torch.ones(3)), (torch.zeros(1), torch.ones(1)), (torch.zeros(3), torch.zeros(3))]
)
def test_mean_or_std_that_does_not_fit_the_input(mean, std):
    with pytest.raises(InputError, match="one of each per channel"):
        Preprocessing((3, 8, 8), mean, std)


def test_mean_and_std_move_with_the_module_and_are_saved():
    preprocessing = Preprocessing.fit(torch.rand(5, 3))
    assert set(preprocessing.state_dict()) == {"mean", "std"}
    assert preprocessing.double()(torch.rand(2, 3)).dtype == torch.float64


def test_pixels_are_resized_cropped_divided_and_standardised():
    images = torch.randint(0, 256, (4, 3, 20, 30), dtype=torch.uint8)
    mean, std = torch.tensor([0.4, 0.5, 0.6]), torch.tensor([0.2, 0.25, 0.3])
    whole = Preprocessing((3, 20, 30), mean, std, divisor=255.0)
    assert torch.equal(whole(images), (images / 255 - mean.view(3, 1, 1)) / std.view(3, 1, 1))
    half = Preprocessing((3, 20, 30), mean, std, divisor=255.0, resize=(10, 15), crop=(8, 8))
    # halving with antialiasing: a tent over four pixels, 1 3 3 1
    tent = torch.tensor([1.0, 3.0, 3.0, 1.0]) / 8
    kernel = (tent[:, None] * tent)[None, None].expand(3, 1, 4, 4)
    smaller = torch.nn.functional.conv2d(images.float(), kernel, stride=2, padding=1, groups=3).round()
    expected = (smaller[:, :, 1:9, 4:12] / 255 - mean.view(3, 1, 1)) / std.view(3, 1, 1)
    assert (half(images) - expected).abs()[:, :, :, :].quantile(0.99) < 1 / 255 / 0.2 + 1e-4
    again = Preprocessing((3, 20, 30), mean, std, **half.settings())
    assert torch.equal(again(images), half(images))


def test_tokens_reach_the_network_as_they_are():
    tokens = Preprocessing((3,), torch.zeros(3), torch.ones(3), form="tokens")
    assert torch.equal(tokens(torch.tensor([[0.0, 7.0, 30521.0]])), torch.tensor([[0, 7, 30521]]))
    assert tokens.dtype == torch.float32


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"crop": (9, 9)}, "a crop of (9, 9) does not fit into images of (8, 8)"),
        ({"resize": (0, 4)}, "cannot be resized to (0, 4)"),
        ({"divisor": 0.0}, "divisor=0.0: give a number above 0"),
        ({"interpolation": "cubic"}, "interpolation='cubic' is unknown: use one of nearest, bilinear, bicubic"),
    ],
)
def test_impossible_steps_are_refused(settings, message):
    with pytest.raises(InputError, match=re.escape(message)):
        Preprocessing((1, 8, 8), torch.zeros(1), torch.ones(1), **settings)
