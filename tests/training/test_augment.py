import pytest
import torch

from besnn.errors import InputError
from besnn.recipe.config import AugmentConfig
from besnn.training.augment import augment, random_crop, random_cutout, random_flip

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


def test_nothing_asked_for_is_nothing_done():
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
    with pytest.raises(InputError, match=r"crop=5 is too much for images of 6×5"):
        augment(IMAGES, AugmentConfig(crop=5))
    with pytest.raises(InputError, match=r"cutout=6 is too much for images of 6×5"):
        augment(IMAGES, AugmentConfig(cutout=6))
