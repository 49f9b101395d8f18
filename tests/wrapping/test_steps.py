"""Preprocessing from other libraries' objects, against what those libraries compute."""

import json

import numpy as np
import pytest
import torch
from PIL import Image

from besnn.data import ImageSpec
from besnn.data.images import read_image
from besnn.errors import InputError
from besnn.wrapping import preprocessing_of
from besnn.wrapping.steps import read_preprocessing

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


FILES = {
    "preprocessor_config.json": {"do_resize": True, "size": {"shortest_edge": 36}, "do_center_crop": True, "crop_size": 28}
    | {"do_rescale": True, "rescale_factor": 1 / 255, "do_normalize": True, "image_mean": MEAN, "image_std": STD},
    "config.json": {"pretrained_cfg": {"input_size": [3, 28, 28], "crop_pct": 28 / 36, "mean": MEAN, "std": STD}},
}


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("size", [(64, 48), (41, 97), (30, 30)])
def test_a_file_that_describes_the_preprocessing(name, size, tmp_path):
    (tmp_path / name).write_text(json.dumps(FILES[name]))
    found = read_preprocessing(tmp_path / name, 3)
    assert (found.input_shape, found.short_side, found.divisor) == ((3, 28, 28), 36, 255.0)
    rough = Image.fromarray(np.random.default_rng(0).integers(0, 256, (6, 5, 3), dtype=np.uint8))
    rough.resize(size, Image.Resampling.BICUBIC).save(tmp_path / "photo.png")
    pixels = read_image(tmp_path / "photo.png", ImageSpec((28, 28), 3, found.short_side))
    width, height = size
    wide, high = (int(36 * width / height), 36) if width > height else (36, int(36 * height / width))
    left, top = round((wide - 28) / 2), round((high - 28) / 2)
    whole = np.asarray(Image.open(tmp_path / "photo.png").resize((wide, high), Image.Resampling.BILINEAR))
    np.testing.assert_array_equal(pixels, whole[top : top + 28, left : left + 28].transpose(2, 0, 1))
    try:
        import torchvision.transforms as transforms
    except ImportError:
        return
    steps = [transforms.Resize(36), transforms.CenterCrop(28), transforms.ToTensor(), transforms.Normalize(MEAN, STD)]
    theirs = transforms.Compose(steps)(Image.open(tmp_path / "photo.png"))
    torch.testing.assert_close(found(torch.from_numpy(pixels)[None])[0], theirs)


@pytest.mark.parametrize(
    ("text", "message"), [("[1]", "does not describe a preprocessing"), ("{", "cannot be read"), ("{}", "timm")]
)
def test_a_file_that_describes_none(text, message, tmp_path):
    (tmp_path / "x.json").write_text(text)
    with pytest.raises((InputError, OSError), match=message):
        read_preprocessing(tmp_path / "x.json", 3)
