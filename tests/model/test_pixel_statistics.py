"""Statistics of images: by hand in NumPy, for images of any size, and what they tell apart."""

import numpy as np
import pytest
import torch

from besnn.errors import InputError
from besnn.model.pixel_statistics import pixel_statistics


def images(*shape):
    return torch.randn(5, *shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def test_colours_and_greys_by_hand():
    x = images(3, 12, 10)
    found = pixel_statistics(x).numpy()
    pixels = x.numpy()
    grey = pixels.mean(1)
    np.testing.assert_allclose(found[:, :3], pixels.mean((2, 3)))
    np.testing.assert_allclose(found[:, 3:6], np.log(pixels.var((2, 3)) + 1e-4))
    np.testing.assert_allclose(found[:, 6:9], np.log(np.abs(pixels - grey[:, None]).mean((2, 3)) + 1e-2))
    np.testing.assert_allclose(found[:, 15], grey.min((1, 2)))
    np.testing.assert_allclose(found[:, 16], grey.max((1, 2)))
    centred = grey - grey.mean((1, 2), keepdims=True)
    unit = centred / np.sqrt(grey.var((1, 2), keepdims=True) + 1e-4)
    np.testing.assert_allclose(found[:, 17], (unit**3).mean((1, 2)))


@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 2, 9), (1, 8, 8), (3, 28, 28), (3, 33, 47), (3, 224, 224)])
def test_every_size_has_finite_statistics(shape):
    for x in (images(*shape), torch.zeros(2, *shape), 1e6 * images(*shape).float()):
        found = pixel_statistics(x)
        assert found.ndim == 2
        assert found.isfinite().all()


def test_flat_noisy_and_blurred_images_differ_from_ordinary_ones():
    smooth = torch.nn.functional.interpolate(images(3, 8, 8), 32, mode="bilinear")
    noise, flat = images(3, 32, 32), smooth[:, :, :1, :1].expand(-1, -1, 32, 32)
    ordinary, spread = pixel_statistics(smooth), pixel_statistics(smooth).std(0) + 0.1
    for other in (noise, flat):
        assert ((pixel_statistics(other) - ordinary.mean(0)).abs() / spread).amax(1).min() > 5


def test_rows_are_no_images():
    with pytest.raises(InputError, match=r"are not images \[channels, h, w\]: leave pixels out of score.far"):
        pixel_statistics(torch.rand(4, 7))
