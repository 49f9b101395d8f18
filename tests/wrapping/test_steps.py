"""Preprocessing from other libraries' objects, against what those libraries compute."""

import numpy as np
import pytest
import torch
from PIL import Image

from besnn.errors import InputError
from besnn.wrapping import preprocessing_of

MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]


@pytest.fixture
def images() -> torch.Tensor:
    """Smooth images, as photographs are."""
    rough = torch.rand(4, 3, 6, 8, generator=torch.Generator().manual_seed(0))
    return (255 * torch.nn.functional.interpolate(rough, (48, 64), mode="bicubic")).clamp(0, 255).to(torch.uint8)


def by_pillow(images: torch.Tensor, transform) -> torch.Tensor:
    return torch.stack([transform(Image.fromarray(image.permute(1, 2, 0).numpy())) for image in images])


def test_torchvision(images):
    transforms = pytest.importorskip("torchvision.transforms", reason="needs torchvision")
    steps = [transforms.Resize(32), transforms.CenterCrop(28), transforms.ToTensor(), transforms.Normalize(MEAN, STD)]
    compose = transforms.Compose(steps)
    found = preprocessing_of((3, 48, 64), compose)
    assert (found.resize, found.crop) == ((32, 42), (28, 28))
    difference = (found(images) - by_pillow(images, compose)).abs()
    assert difference.max() < 2.1 / 255 / min(STD)  # Pillow rounds after each of two passes
    exact = transforms.Compose(steps[2:])
    assert torch.equal(preprocessing_of((3, 48, 64), exact)(images), by_pillow(images, exact))
    two = pytest.importorskip("torchvision.transforms.v2", reason="needs torchvision")
    newer = two.Compose([two.ToImage(), two.Resize(32), two.CenterCrop(28), two.ToDtype(torch.float32, scale=True)])
    assert preprocessing_of((3, 48, 64), newer).settings() == found.settings()
    preset = transforms._presets.ImageClassification(crop_size=28, resize_size=32)
    assert preprocessing_of((3, 48, 64), preset).settings() == found.settings()


@pytest.mark.parametrize("name", ["RandomHorizontalFlip", "Grayscale"])
def test_what_cannot_be_kept_as_data_is_refused(name):
    transforms = pytest.importorskip("torchvision.transforms", reason="needs torchvision")
    with pytest.raises(InputError, match=f"the transform {name} cannot be kept as data: pass Resize"):
        preprocessing_of((3, 48, 64), getattr(transforms, name)())


def test_any_other_object_is_refused():
    with pytest.raises(InputError, match="the transform function cannot be kept as data"):
        preprocessing_of((3, 48, 64), lambda image: image)


def test_timm(images):
    data = pytest.importorskip("timm.data", reason="needs timm")
    config = {"input_size": (3, 28, 28), "interpolation": "bicubic", "mean": MEAN, "std": STD, "crop_pct": 0.875}
    found = preprocessing_of((3, 48, 64), config)
    assert (found.resize, found.crop, found.interpolation) == ((32, 42), (28, 28), "bicubic")
    difference = (found(images) - by_pillow(images, data.create_transform(**config))).abs()
    assert difference.max() < 3.1 / 255 / min(STD)
    with pytest.raises(InputError, match="not timm's"):
        preprocessing_of((3, 48, 64), {"mean": MEAN})


def test_transformers(images):
    transformers = pytest.importorskip("transformers", reason="needs transformers")
    processor = transformers.ViTImageProcessor(size={"height": 28, "width": 28}, image_mean=MEAN, image_std=STD)
    found = preprocessing_of((3, 48, 64), processor)
    assert (found.resize, found.crop, found.divisor) == ((28, 28), None, 255.0)
    expected = processor(list(images.numpy()), return_tensors="pt", input_data_format="channels_first")["pixel_values"]
    assert (found(images) - expected).abs().max() < 2.1 / 255 / min(STD)


def test_numbers(images):
    found = preprocessing_of((3, 48, 64), mean=MEAN, std=STD, size=(24, 32))
    shape = (3, 1, 1)
    smaller = torch.nn.functional.interpolate(images.float(), (24, 32), mode="bilinear", antialias=True).round()
    expected = (smaller / 255 - torch.tensor(MEAN).view(shape)) / torch.tensor(STD).view(shape)
    torch.testing.assert_close(found(images), expected)
    assert torch.equal(preprocessing_of((3, 48, 64))(images), images / 255)
    assert np.array_equal(preprocessing_of((3, 4, 4), mean=0.5).mean, [0.5] * 3)
    with pytest.raises(InputError, match="one of each per channel"):
        preprocessing_of((3, 4, 4), mean=[0.5, 0.5])
