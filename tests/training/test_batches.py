import dataclasses

import numpy as np
import pytest
import torch

from besnn.data import Dataset, load, load_or_stream
from besnn.errors import DataError, InputError
from besnn.recipe.config import AugmentConfig
from besnn.training.batches import (
    ArraySource,
    FolderSource,
    augment,
    in_order,
    open_source,
    random_crop,
    random_cutout,
    random_flip,
)

CPU = torch.device("cpu")


@pytest.fixture
def folder(stripe_folder):
    return load_or_stream(stripe_folder, byte_budget=0)


def test_arrays_and_folders_hand_out_the_same_batches(folder, stripe_folder):
    arrays, streamed = open_source(load(stripe_folder), CPU), open_source(folder, CPU)
    assert isinstance(arrays, ArraySource)
    assert isinstance(streamed, FolderSource)
    assert len(arrays) == len(streamed) == 64
    order = torch.randperm(64)[:50]
    pairs = list(zip(arrays.batches(order, 16), streamed.batches(order, 16), strict=True))
    assert [len(labels) for (_, labels), _ in pairs] == [16, 16, 16, 2]
    for (inputs, labels), (streamed_inputs, streamed_labels) in pairs:
        assert inputs.dtype == streamed_inputs.dtype == torch.uint8
        assert torch.equal(inputs, streamed_inputs)
        assert labels.dtype == streamed_labels.dtype == torch.int64
        assert torch.equal(labels, streamed_labels)


def test_batches_are_the_rows_that_were_asked_for(stripes):
    order = torch.tensor([5, 3, 60])
    ((inputs, labels),) = ArraySource(stripes, CPU).batches(order, 8)
    assert np.array_equal(inputs.numpy(), stripes.inputs[[5, 3, 60]])
    assert np.array_equal(labels.numpy(), stripes.labels[[5, 3, 60]])


def test_in_order(folder):
    labels = torch.cat([labels for _, labels in in_order(FolderSource(folder, CPU), 10)])
    assert np.array_equal(labels.numpy(), folder.labels)


def test_samples(folder, stripes):
    assert np.array_equal(ArraySource(stripes, CPU).sample().numpy(), stripes.inputs)
    source = FolderSource(folder, CPU)
    assert source.sample(20).shape == (20, 1, 8, 8)
    assert torch.equal(source.sample(20), source.sample(20))
    whole = folder.load().inputs
    assert sorted(source.sample().flatten(1).tolist()) == sorted(whole.reshape(64, -1).tolist())


def test_read_only_and_strided_arrays_are_taken_without_a_warning():
    inputs = np.zeros((6, 4), np.float32)
    inputs.setflags(write=False)
    labels = np.arange(12)[::2] % 2
    source = ArraySource(Dataset(inputs[:, ::2], labels, ("a", "b"), "strided"), CPU)
    assert source.labels.tolist() == labels.tolist()


def test_labels_are_needed(moons):
    with pytest.raises(InputError, match="has no labels"):
        ArraySource(Dataset(moons.inputs, None, (), "plain"), CPU)


def test_an_unreadable_image_is_named(folder, stripe_folder, tmp_path):
    broken = tmp_path / "broken.png"
    broken.write_bytes(b"no image")
    with_broken = dataclasses.replace(folder, files=(*folder.files[:3], broken), labels=folder.labels[:4])
    with pytest.raises(DataError, match=r"broken\.png"):
        list(in_order(FolderSource(with_broken, CPU), 2))


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
