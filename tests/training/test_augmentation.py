"""Random changes of images, and the choice of those that suit the data."""

import dataclasses

import numpy as np
import pytest
import torch

from besnn.data import digits
from besnn.errors import InputError
from besnn.recipe.config import AugmentConfig
from besnn.training.augmentation import (
    CELLS,
    DIRECTIONS,
    augment,
    edge_directions,
    mirror_images_belong,
    random_crop,
    random_cutout,
    random_flip,
    suit_augmentation,
)
from besnn.training.batches import ArraySource

CPU = torch.device("cpu")

IMAGES = torch.rand(64, 3, 6, 5, generator=torch.Generator().manual_seed(0))


def test_a_crop_is_one_of_the_shifts_of_the_reflected_image():
    padded = torch.nn.functional.pad(IMAGES, [2, 2, 2, 2], mode="reflect")
    shifts = [(top, left) for top in range(5) for left in range(5)]
    seen = set()
    for image, frame in zip(random_crop(IMAGES, 2), padded, strict=True):
        matches = [(y, x) for y, x in shifts if torch.equal(frame[:, y : y + 6, x : x + 5], image)]
        assert len(matches) == 1
        seen.add(matches[0])
    assert len(seen) > 15  # of 25, by 64 draws


def test_a_flip_mirrors_about_half():
    flipped = random_flip(IMAGES)
    mirrored = [torch.equal(new, old.flip(-1)) for new, old in zip(flipped, IMAGES, strict=True)]
    kept = [torch.equal(new, old) for new, old in zip(flipped, IMAGES, strict=True)]
    assert all(a != b for a, b in zip(mirrored, kept, strict=True))
    assert 16 < sum(mirrored) < 48


def test_a_cutout_blanks_one_square_that_may_reach_over_the_edge():
    frame = 2
    squares = set()
    for image in random_cutout(torch.ones(400, 3, 6, 5), 3):
        assert torch.equal(image, image[:1].expand_as(image))  # the same in every channel
        blank = torch.nn.functional.pad(image[0] == 0, [frame] * 4)
        matches = [
            (y, x)
            for y in range(6)
            for x in range(5)  # a square whose centre is that pixel, cut off at the edges
            if torch.equal(blank, _square(y + frame, x + frame, frame))
        ]
        assert len(matches) == 1
        squares.add(matches[0])
    assert len(squares) == 30  # every pixel is a centre, by 400 draws


def _square(y: int, x: int, frame: int) -> torch.Tensor:
    blank = torch.zeros(6 + 2 * frame, 5 + 2 * frame, dtype=torch.bool)
    blank[y - 1 : y + 2, x - 1 : x + 2] = True
    blank[:frame] = blank[-frame:] = blank[:, :frame] = blank[:, -frame:] = False
    return blank


def test_without_settings_images_stay_as_they_are():
    assert augment(IMAGES, AugmentConfig()) is IMAGES
    rows = torch.rand(4, 2)
    assert augment(rows, AugmentConfig()) is rows


def test_all_together():
    torch.manual_seed(0)
    together = augment(IMAGES, AugmentConfig(crop=1, flip=True, cutout=2))
    torch.manual_seed(0)
    assert torch.equal(together, random_cutout(random_flip(random_crop(IMAGES, 1)), 2))


def test_mistakes():
    with pytest.raises(InputError, match=r"training.augment is for images"):
        augment(torch.rand(4, 2), AugmentConfig(flip=True))
    with pytest.raises(InputError, match=r"crop=5 is too large for images of 6×5"):
        augment(IMAGES, AugmentConfig(crop=5))
    with pytest.raises(InputError, match=r"cutout=6 is too large for images of 6×5"):
        augment(IMAGES, AugmentConfig(cutout=6))


def as_images(dataset):
    return torch.from_numpy(dataset.inputs).float(), dataset.labels


@pytest.fixture(scope="module")
def both_ways():
    """Digits of which half are mirror images: they belong to their class as much as the others."""
    inputs = digits().inputs.copy()
    mirrored = np.random.default_rng(0).random(len(inputs)) < 0.5
    inputs[mirrored] = inputs[mirrored][..., ::-1]
    return dataclasses.replace(digits(), inputs=inputs)


def test_mirror_images_of_digits_are_no_digits(both_ways):
    assert not mirror_images_belong(*as_images(digits()))
    assert mirror_images_belong(*as_images(both_ways))


def test_too_little_to_tell_means_no_mirroring():
    images, labels = as_images(digits())
    assert not mirror_images_belong(images[:40], labels[:40])
    assert not mirror_images_belong(images, np.zeros_like(labels))


@pytest.mark.parametrize(("turns", "direction"), [(0, 0), (1, 2), (2, 4), (3, 6)])
def test_an_edge_counts_in_its_direction(turns, direction):
    """From dark to light along a row is direction 0, a quarter turn on is 2 of 8."""
    ramp = torch.arange(8.0).expand(1, 1, 8, 8)
    edges = edge_directions(torch.rot90(ramp, -turns, (2, 3))).view(DIRECTIONS, CELLS, CELLS)
    assert (edges.sum(dim=(1, 2)) > 1e-3).nonzero().flatten().tolist() == [direction]


def test_auto_is_replaced_by_what_suits_the_images(tiny_recipe, both_ways):
    settings = ["training.augment={crop: auto, flip: auto}", "method.mirror=true", "pretraining.augment={crop: 2, flip: auto}"]
    recipe = tiny_recipe(*settings)
    for dataset, flip in ((digits(), False), (both_ways, True)):
        suited = suit_augmentation(recipe, ArraySource(dataset, CPU))
        assert suited.training.augment == AugmentConfig(crop=1, flip=flip)
        assert suited.pretraining.augment == AugmentConfig(crop=2, flip=flip)
        assert suited.method.mirror == flip
    settled = tiny_recipe("training.augment={crop: 1, flip: true}")
    assert suit_augmentation(settled, ArraySource(digits(), CPU)) is settled


def test_only_images_are_augmented_automatically(tiny_recipe, moons):
    with pytest.raises(InputError, match=r"training\.augment is for images"):
        suit_augmentation(tiny_recipe("training.augment.crop=auto"), ArraySource(moons, CPU))
