"""Nearest examples by brute force, and heat maps whose truth is known."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from besnn.detection.explanation import Examples, occlusion_map
from besnn.errors import InputError


def features(n, seed):
    return torch.randn(3, n, 16, generator=torch.Generator().manual_seed(seed))


def test_neighbours_are_the_nearest_by_brute_force():
    kept, new = features(200, 0), features(30, 1)
    examples = Examples.of(np.zeros((200, 2), np.float32), np.arange(200), kept)
    rows, distances = examples.nearest(new, 5)
    stored = examples.codes.double() * examples.scale
    far = 1 - F.cosine_similarity(new.double()[:, :, None], stored[:, None], dim=-1).mean(dim=0)
    expected = far.sort(dim=1)
    np.testing.assert_array_equal(rows, expected.indices[:, :5])
    np.testing.assert_allclose(distances, expected.values[:, :5], atol=1e-5)


def test_an_example_is_its_own_nearest_neighbour_after_a_round_trip():
    kept = features(50, 0)
    examples = Examples.from_state(Examples.of(np.zeros((50, 1, 4, 4), np.uint8), np.arange(50), kept).state())
    rows, distances = examples.nearest(kept, 3)
    assert rows[:, 0].tolist() == list(range(50))
    assert distances[:, 0].max() < 1e-3
    assert len(examples.nearest(kept, 99)[0][0]) == 50


def test_neighbours_are_found_by_the_numbers_that_examples_have():
    kept, new = features(50, 0), features(10, 1)
    examples = Examples.of(np.zeros((50, 2), np.float32), np.arange(50), kept)
    with_others = torch.cat([new, 100 * features(10, 2)], dim=-1)
    assert torch.equal(examples.nearest(with_others, 5).rows, examples.nearest(new, 5).rows)


def test_examples_must_fit_together():
    with pytest.raises(InputError, match="3 examples, 2 labels"):
        Examples(np.zeros((3, 2)), np.zeros(2, np.int64), torch.zeros(1, 3, 4), torch.ones(1, 3, 1))


def test_the_heat_is_where_the_score_comes_from():
    image = torch.zeros(1, 28, 28, dtype=torch.uint8)
    image[0, 4:9, 15:20] = 255

    def score(images):
        return images[:, 0, 4:9, 15:20].float().mean(dim=(1, 2)).numpy()

    heat = occlusion_map(score, image)
    assert heat.shape == (28, 28)
    y, x = np.unravel_index(heat.argmax(), heat.shape)
    assert 4 <= y < 9
    assert 15 <= x < 20
    assert heat[18:, :10].max() == 0


@pytest.mark.parametrize("shape", [(1, 3, 3), (3, 8, 20), (1, 2, 30)])
def test_small_and_oblong_images(shape):
    heat = occlusion_map(lambda images: images.float().mean(dim=(1, 2, 3)).numpy(), torch.zeros(shape, dtype=torch.uint8))
    assert heat.shape == shape[1:]
    assert np.array_equal(heat, np.zeros(shape[1:], np.float32))
