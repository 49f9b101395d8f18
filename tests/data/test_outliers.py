import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from besnn.data import digits, made_up_outliers, two_moons
from besnn.data.outliers import COLOUR_OUTLIERS, IMAGE_OUTLIERS, TABLE_OUTLIERS
from besnn.errors import InputError


def photos(n=12, channels=3, height=9, width=10, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (n, channels, height, width), dtype=np.uint8)


@given(st.integers(2, 6), st.sampled_from([1, 3]), st.integers(1, 12), st.integers(1, 12), st.integers(0, 3))
def test_every_kind_keeps_shape_and_dtype_and_leaves_its_inputs_alone(n, channels, height, width, seed):
    images = photos(n, channels, height, width)
    before = images.copy()
    for made in made_up_outliers(images, seed=seed).values():
        assert made.shape == images.shape
        assert made.dtype == np.uint8
    assert np.array_equal(images, before)


@pytest.mark.parametrize(
    ("inputs", "kinds"),
    [
        (photos(channels=1), IMAGE_OUTLIERS),
        (photos(), IMAGE_OUTLIERS | COLOUR_OUTLIERS),
        (two_moons(20).inputs, TABLE_OUTLIERS),
    ],
)
def test_outliers_depend_only_on_inputs_seed_and_kind(inputs, kinds):
    everything = made_up_outliers(inputs, seed=5)
    assert list(everything) == list(kinds)
    other = made_up_outliers(inputs, seed=6)
    for kind in kinds:
        assert np.array_equal(made_up_outliers(inputs, kinds=[kind], seed=5)[kind], everything[kind])
        assert np.array_equal(other[kind], everything[kind]) == (kind == "inverted")
        assert not np.array_equal(everything[kind], inputs)


@pytest.mark.parametrize("kind", ["shuffled-pixels", "shuffled-patches"])
def test_shuffling_keeps_every_images_pixels(kind):
    images = photos()
    shuffled = made_up_outliers(images, kinds=[kind])[kind]
    for image, other in zip(images, shuffled, strict=True):
        pixels = sorted(map(tuple, image.reshape(3, -1).T.tolist()))
        assert sorted(map(tuple, other.reshape(3, -1).T.tolist())) == pixels
        assert not np.array_equal(image, other)


def test_patches_are_moved_as_a_whole():
    images = photos(n=5, height=9, width=10)
    shuffled = made_up_outliers(images, kinds=["shuffled-patches"])["shuffled-patches"]
    assert np.array_equal(shuffled[:, :, 8:], images[:, :, 8:])
    assert np.array_equal(shuffled[:, :, :, 8:], images[:, :, :, 8:])
    corners = [(row, column) for row in range(0, 8, 2) for column in range(0, 8, 2)]
    for image, other in zip(images, shuffled, strict=True):
        patches = sorted(image[:, r : r + 2, c : c + 2].tobytes() for r, c in corners)
        assert sorted(other[:, r : r + 2, c : c + 2].tobytes() for r, c in corners) == patches


def test_inverting_twice_gives_the_image_back():
    images = photos()
    once = made_up_outliers(images, kinds=["inverted"])["inverted"]
    assert np.array_equal(made_up_outliers(once, kinds=["inverted"])["inverted"], images)
    assert np.all(once.astype(int) + images == 255)


def test_noise_has_the_moments_it_should():
    images = digits().inputs
    made = made_up_outliers(images, kinds=["uniform-noise", "gaussian-noise"])
    assert abs(made["uniform-noise"].mean() - 127.5) < 1
    assert abs(made["uniform-noise"].std() - np.sqrt((256**2 - 1) / 12)) < 1
    # A normal distribution cut off at 0 and 255, by numerical integration.
    grid = np.linspace(-8, 8, 100_001)
    density = np.exp(-(grid**2) / 2) / np.exp(-(grid**2) / 2).sum()
    expected = (density * np.clip(images.mean() + images.std() * grid, 0, 255)).sum()
    assert abs(made["gaussian-noise"].mean() - expected) < 1


def test_quarters_of_mosaics_come_from_images():
    images = photos(n=30)
    made = made_up_outliers(images, kinds=["mosaics"])["mosaics"]
    sources = []
    for rows in (slice(4), slice(4, None)):
        for columns in (slice(5), slice(5, None)):
            quarters = {image[:, rows, columns].tobytes(): place for place, image in enumerate(images)}
            sources.append([quarters[mosaic[:, rows, columns].tobytes()] for mosaic in made])
    assert all(sorted(each) == list(range(30)) for each in sources)
    assert max(len(set(each)) for each in zip(*sources, strict=True)) == 4


def test_blends_are_halfway_to_another_image():
    images = photos(n=7)
    made = made_up_outliers(images, kinds=["blends"])["blends"]
    for place, blend in enumerate(made):
        halves = [(images[place].astype(int) + other) // 2 for other in images]
        partners = [other for other, half in enumerate(halves) if np.array_equal(half, blend)]
        assert len(partners) == 1
        assert partners != [place]


def test_mixed_channels_come_from_several_images():
    images = photos(n=30)
    made = made_up_outliers(images, kinds=["mixed-channels"])["mixed-channels"]
    sources = []
    for channel in range(3):
        places = {image[channel].tobytes(): place for place, image in enumerate(images)}
        sources.append([places[mixed[channel].tobytes()] for mixed in made])
    assert all(sorted(each) == list(range(30)) for each in sources)
    assert max(len(set(each)) for each in zip(*sources, strict=True)) == 3


def test_magnified_patches_are_what_torch_enlarges():
    images = photos(n=6, height=16, width=12)
    made = made_up_outliers(images, kinds=["magnified-patches"])["magnified-patches"]
    for image, large in zip(images, made, strict=True):
        pixels = torch.from_numpy(image)[None].double()
        patches = [pixels[..., row : row + 4, column : column + 3] for row in range(13) for column in range(10)]
        enlarged = [F.interpolate(patch, (16, 12), mode="bilinear", align_corners=True)[0] for patch in patches]
        assert min(np.abs(each.numpy() - large).max() for each in enlarged) <= 0.5 + 1e-9


@pytest.mark.parametrize(("height", "width"), [(8, 8), (9, 10), (8, 7)])
def test_scrambled_phases_keep_the_spectrum_and_lose_the_image(height, width):
    base = np.random.default_rng(0).integers(120, 136, (20, 3, height, width), dtype=np.uint8)  # nothing reaches 0 or 255
    made = made_up_outliers(base, kinds=["scrambled-phases"])["scrambled-phases"]
    before, after = (np.abs(np.fft.fft2(images.astype(float))) for images in (base, made))
    assert np.abs(after - before).max() < 0.5 * height * width**0.5 + 1  # rounding to whole pixels
    assert np.abs(after - before).mean() < 0.06 * before.std()
    correlation = [np.corrcoef(a.ravel(), b.ravel())[0, 1] for a, b in zip(base, made, strict=True)]
    assert abs(np.mean(correlation)) < 0.1


def test_grey_images_have_no_colours_to_mix():
    with pytest.raises(InputError, match="no outliers of kind 'mixed-channels' for these inputs"):
        made_up_outliers(photos(channels=1), kinds=["mixed-channels"])


def test_permuted_columns_keep_each_column_and_lose_their_correlation():
    rows = np.repeat(np.arange(500, dtype=np.float32)[:, None], 2, axis=1)
    made = made_up_outliers(rows, kinds=["permuted-columns"])["permuted-columns"]
    assert np.array_equal(np.sort(made, axis=0), rows)
    assert abs(np.corrcoef(made.T)[0, 1]) < 0.2


def test_the_enlarged_box_is_twice_as_wide():
    rows = np.random.default_rng(0).uniform([-1, 10], [1, 14], (5000, 2)).astype(np.float32)
    made = made_up_outliers(rows, kinds=["enlarged-box"])["enlarged-box"]
    assert made.dtype == np.float32
    assert np.allclose(made.min(axis=0), [-2, 8], atol=0.05)
    assert np.allclose(made.max(axis=0), [2, 16], atol=0.05)


def test_wrong_use():
    with pytest.raises(InputError, match="no outliers of kind 'mosaics' for these inputs: choose from permuted-columns"):
        made_up_outliers(two_moons(5).inputs, kinds=["mosaics"])
    with pytest.raises(InputError, match="at least 2 inputs"):
        made_up_outliers(photos(1))
