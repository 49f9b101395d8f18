"""Image grids show the pixels they are given."""

import numpy as np
import pytest

from besnn.errors import InputError
from besnn.evaluation.plots import image_grid

GENERATOR = np.random.default_rng(0)


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_bytes_are_shown_as_they_are(channels: int, pixels_of) -> None:
    images = GENERATOR.integers(0, 256, (8, channels, 5, 6), dtype=np.uint8)
    figure = image_grid(images, [f"image {index}" for index in range(8)])
    pixels_of(figure)
    assert [axes.get_xlabel() for axes in figure.axes] == [f"image {index}" for index in range(8)]
    for axes, image in zip(figure.axes, images, strict=True):
        expected = image.transpose(1, 2, 0) if channels == 3 else image.mean(axis=0).astype(np.uint8)
        np.testing.assert_array_equal(axes.images[0].get_array(), expected)
        assert axes.images[0].get_clim() == (0, 255)


def test_other_values_are_stretched(pixels_of) -> None:
    images = np.stack([np.linspace(-3, 5, 16).reshape(1, 4, 4), np.full((1, 4, 4), 0.3)])
    figure = image_grid(images, ["ramp", "flat"])
    pixels_of(figure)
    ramp, flat = (axes.images[0].get_array() for axes in figure.axes)
    assert (ramp.min(), ramp.max(), flat.min(), flat.max()) == (0, 255, 0, 0)


def test_long_caption_lines_are_cut() -> None:
    figure = image_grid(np.zeros((1, 1, 2, 2)), ["a/long/path/to/some/image/of/a/coat.png\nshort"])
    first, second = figure.axes[0].get_xlabel().split("\n")
    assert len(first) <= 20
    assert first.endswith("coat.png")
    assert second == "short"


@pytest.mark.parametrize(("shape", "captions"), [((2, 3, 3), 2), ((0, 1, 3, 3), 0), ((2, 1, 3, 3), 1)])
def test_wrong_shapes_are_named(shape: tuple[int, ...], captions: int) -> None:
    with pytest.raises(InputError, match=f"with {captions} captions"):
        image_grid(np.zeros(shape), ["x"] * captions)
