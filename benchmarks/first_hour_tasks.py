"""Small image tasks as a newcomer has them: a few hundred images per class, and several kinds of unknown images.

The reported tasks are of CIFAR-10 and FashionMNIST. Settings are chosen on the development tasks alone: superclasses of
CIFAR-100, digits of SVHN, letters of NotMNIST, and training images of CIFAR-10 and FashionMNIST, with classes that are chosen
otherwise.
"""

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFilter, ImageFont

from besnn.data import Dataset, ImageSpec, load
from besnn.data.dataset import Inputs
from besnn.data.images import convert_images

Images = Inputs  # uint8 [n, c, h, w]
UNKNOWN = 1000
"""Images per unknown set, at most."""
NEAR = "unseen classes"
FOLDER = ImageSpec(32, channels=3)
"""What images in a folder of such sizes are converted to."""

# The superclass of each fine class of CIFAR-100, in the order of their names.
# fmt: off
SUPERCLASSES = (
    4, 1, 14, 8, 0, 6, 7, 7, 18, 3, 3, 14, 9, 18, 7, 11, 3, 9, 7, 11, 6, 11, 5, 10, 7,
    6, 13, 15, 3, 15, 0, 11, 1, 10, 12, 14, 16, 9, 11, 5, 5, 19, 8, 8, 15, 13, 14, 17, 18, 10,
    16, 4, 17, 4, 2, 0, 17, 4, 18, 17, 10, 3, 2, 12, 12, 16, 12, 1, 9, 19, 2, 10, 0, 1, 16,
    12, 9, 13, 15, 13, 16, 19, 2, 4, 6, 19, 5, 5, 8, 19, 18, 1, 2, 15, 6, 0, 17, 8, 14, 13,
)
# fmt: on


@dataclass(frozen=True)
class Task:
    """Images to train on, test images of the same classes, and sets of unknown images."""

    training: Dataset
    test: Dataset
    unknown: Mapping[str, Images]  # all of the shape of the training images


@dataclass(frozen=True)
class Plan:
    """Which task to make: so many images of some classes to train on; the other classes are unknown."""

    source: str
    classes: tuple[int, ...]
    per_class: int
    far: tuple[str, ...]  # names of further unknown sets
    mosaic: bool = False  # 64-pixel images: 2 × 2 images of one class
    spec: ImageSpec = FOLDER

    def make(self, seed: int, data_dir: Path | None) -> Task:
        """Draw the images of the task; another seed draws others."""
        rng = np.random.default_rng([seed, zlib.crc32(f"{self.source}{self.classes}".encode())])
        pools = _pools(self.source, data_dir)
        others = sorted(set(range(len(pools[1].class_names))) - set(self.classes))
        training = self._draw(pools[0], self.classes, self.per_class, rng)
        test = self._draw(pools[1], self.classes, 100, rng)
        near = self._draw(pools[1], others, UNKNOWN // len(others), rng)
        far = {name: _converted(far_images(name, training.inputs, rng, data_dir), self.spec) for name in self.far}
        return Task(training, test, {NEAR: near.inputs, **far})

    def _draw(self, pool: Dataset, classes: Sequence[int], per_class: int, rng: np.random.Generator) -> Dataset:
        """Draw images of some classes, relabelled 0, 1, ...; a mosaic takes four images of its class."""
        assert pool.labels is not None
        inputs, labels = [], []
        for label, number in enumerate(classes):
            rows = np.flatnonzero(pool.labels == number)
            count = min(per_class, len(rows))
            if self.mosaic:
                images = _mosaics(pool.inputs[rng.choice(rows, (count, 4))])
            else:
                images = pool.inputs[rng.choice(rows, count, replace=False)]
            inputs.append(_converted(images, self.spec))
            labels += [label] * count
        names = tuple(pool.class_names[number] for number in classes)
        return Dataset(np.concatenate(inputs), np.asarray(labels), names, pool.name, pool.hashes)


FAR = ("mnist", "svhn", "noise", "text", "flat colours")
DEVELOPMENT_FAR = ("not-mnist", "fashion-mnist", "noise", "flat colours", "gradients", "blurred", "signs")

REPORTED: dict[str, Plan] = {
    "photos-1": Plan("cifar10", (0, 1, 6, 7, 8, 9), 300, FAR),
    "photos-2": Plan("cifar10", (0, 1, 2, 3, 4, 5), 300, FAR),
    "photos-3": Plan("cifar10", (1, 3, 5, 6, 8, 9), 300, FAR),
    "fashion": Plan("fashion-mnist", (0, 1, 2, 3, 5, 8), 200, ("mnist", "noise", "text", "flat colours")),
    "mosaics": Plan("cifar10", (0, 2, 3, 5, 7, 9), 300, FAR, mosaic=True, spec=ImageSpec(64, channels=3)),
}
DEVELOPMENT: dict[str, Plan] = {
    "superclasses-1": Plan("cifar100-sample", (0, 3, 6, 10, 14, 18), 200, DEVELOPMENT_FAR),
    "superclasses-2": Plan("cifar100-sample", (1, 4, 7, 9, 12, 19), 200, DEVELOPMENT_FAR),
    "superclasses-3": Plan("cifar100-sample", (2, 5, 8, 11, 13, 15), 200, DEVELOPMENT_FAR),
    "house-numbers": Plan("svhn", (0, 1, 2, 3, 4, 5), 300, ("cifar100-sample", "not-mnist", "noise", "flat colours")),
    "unseen-1": Plan("cifar10:train", (0, 3, 5, 6, 7, 9), 300, DEVELOPMENT_FAR),
    "unseen-2": Plan("cifar10:train", (0, 2, 3, 4, 5, 9), 300, DEVELOPMENT_FAR),
    "unseen-3": Plan("cifar10:train", (0, 3, 5, 6, 7, 8), 300, DEVELOPMENT_FAR),
    "unseen-4": Plan("cifar10:train", (0, 1, 3, 6, 7, 8), 300, DEVELOPMENT_FAR),
    "garments": Plan(
        "fashion-mnist:train",
        (0, 3, 6, 7, 8, 9),
        200,
        ("not-mnist", "cifar100-sample", "noise", "flat colours", "digits"),
    ),
    "letters": Plan("not-mnist", (0, 1, 2, 3, 4, 5), 200, ("fashion-mnist", "cifar100-sample", "noise", "flat colours")),
}
TASKS = REPORTED | DEVELOPMENT


@cache
def _pools(source: str, data_dir: Path | None) -> tuple[Dataset, Dataset]:
    """Return what training and test images are drawn from: the official splits, or two parts of a set that has only one."""
    if source in ("cifar10", "fashion-mnist"):
        return load(source, split="train", data_dir=data_dir), load(source, split="test", data_dir=data_dir)
    name, _, split = source.partition(":")
    whole = load(name, split=split or "test", data_dir=data_dir)
    if source == "cifar100-sample":
        labels = np.asarray(SUPERCLASSES)[whole.labels]
        whole = Dataset(whole.inputs, labels, tuple(f"superclass {number}" for number in range(20)), whole.name, whole.hashes)
    rank = np.zeros(len(whole), np.int64)  # within its class
    assert whole.labels is not None
    for label in set(whole.labels.tolist()):
        rank[whole.labels == label] = np.random.default_rng(label).permutation(np.count_nonzero(whole.labels == label))
    test = 50 if source == "cifar100-sample" else 150
    return whole.subset(np.flatnonzero(rank >= test)), whole.subset(np.flatnonzero(rank < test))


def _converted(images: Images, spec: ImageSpec) -> Images:
    return convert_images(images.astype(np.uint8, copy=False), spec)


def _mosaics(quarters: Images) -> Images:
    """Join four images each, `[n, 4, c, h, w]`, to one of twice the height and width."""
    rows = [np.concatenate([quarters[:, i], quarters[:, i + 1]], axis=3) for i in (0, 2)]
    return np.concatenate(rows, axis=2)


def far_images(name: str, like: Images, rng: np.random.Generator, data_dir: Path | None) -> Images:
    """Make or draw the images of an unknown set by name, of any size and number of channels."""
    if name in MADE:
        return MADE[name](like, rng)
    if name == "signs":
        return signs(like, load("not-mnist", split="test", data_dir=data_dir).inputs, rng)
    dataset = load(name, split="test", data_dir=data_dir)
    return dataset.inputs[rng.choice(len(dataset), UNKNOWN, replace=False)]


def noise(like: Images, rng: np.random.Generator) -> Images:
    """Draw every pixel uniformly from 0 to 255."""
    return rng.integers(0, 256, (UNKNOWN, *like.shape[1:]), dtype=np.uint8)


def flat_colours(like: Images, rng: np.random.Generator) -> Images:
    """Make images of one colour each."""
    colours = rng.integers(0, 256, (UNKNOWN, like.shape[1], 1, 1), dtype=np.uint8)
    return np.tile(colours, (1, 1, *like.shape[2:]))


def gradients(like: Images, rng: np.random.Generator) -> Images:
    """Make images that change evenly from one colour to another."""
    _, channels, height, width = like.shape
    first, second = rng.uniform(0, 255, (2, UNKNOWN, channels, 1, 1))
    down = rng.uniform(0, 1, (UNKNOWN, 1, 1, 1))
    place = down * np.linspace(0, 1, height)[:, None] + (1 - down) * np.linspace(0, 1, width)
    pixels: Images = np.rint(first + (second - first) * place).astype(np.uint8)
    return pixels


def blurred(like: Images, rng: np.random.Generator) -> Images:
    """Average training images over squares of an eighth of their side: colours without objects."""
    chosen = like[rng.choice(len(like), UNKNOWN)]
    side = like.shape[2] // 8
    small = chosen.reshape(*chosen.shape[:2], 8, side, 8, side).mean(axis=(3, 5))
    return _converted(np.rint(small).astype(np.uint8), ImageSpec(like.shape[2:], like.shape[1]))


def signs(like: Images, letters: Images, rng: np.random.Generator) -> Images:
    """Write grey `letters` on faint, blurred training images, slightly turned and blurred: one in full between parts of two.

    The ink is the colour of a pixel of another training image.
    """
    _, channels, height, width = like.shape
    backgrounds = blurred(like, rng)
    backgrounds = (backgrounds + 2 * backgrounds.mean(axis=(2, 3), keepdims=True)) / 3
    inks = like[rng.choice(len(like), UNKNOWN), :, rng.choice(height, UNKNOWN), rng.choice(width, UNKNOWN)]
    pages = []
    for background, ink, three in zip(backgrounds, inks, letters[rng.choice(len(letters), (UNKNOWN, 3)), 0], strict=True):
        strip = Image.fromarray(np.concatenate(three, axis=1)).resize((2 * width, height))
        turned = strip.rotate(rng.uniform(-10, 10), Image.Resampling.BILINEAR).filter(ImageFilter.GaussianBlur(width / 32))
        share = np.asarray(turned.crop((width // 2, 0, width // 2 + width, height))) / 255
        pages.append(background + (ink.reshape(channels, 1, 1) - background) * share)
    written: Images = np.rint(np.stack(pages)).astype(np.uint8)
    return written


def digits(like: Images, rng: np.random.Generator) -> Images:
    """Enlarge scikit-learn's digits to three quarters of the height and width, with sharper strokes, on black."""
    _, _, height, width = like.shape
    small = load("digits").inputs
    pages = np.zeros((UNKNOWN, 1, height, width), np.uint8)
    for page, pixels in zip(pages, small[rng.choice(len(small), UNKNOWN, replace=False)], strict=True):
        large = Image.fromarray(pixels[0]).resize((width - 2 * (width // 8), height - 2 * (height // 8)))
        strokes = np.clip(2 * np.asarray(large).astype(float) - 128, 0, 255)
        page[0, height // 8 : height - height // 8, width // 8 : width - width // 8] = strokes
    return pages


def text(like: Images, rng: np.random.Generator) -> Images:
    """Write lines of random letters, in one colour on another."""
    alphabet = list("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789")
    pages = []
    for _ in range(UNKNOWN):
        background, ink = (tuple(rng.integers(low, low + 96, 3).tolist()) for low in rng.permutation([0, 160]))
        page = Image.new("RGB", (like.shape[3], like.shape[2]), background)
        pen, size = ImageDraw.Draw(page), int(rng.integers(8, 15))
        for line in range(like.shape[2] // size + 1):
            letters = "".join(rng.choice(alphabet, 16))
            pen.text((-int(rng.integers(0, 4)), line * size), letters, ink, ImageFont.load_default(size))
        pages.append(np.asarray(page).transpose(2, 0, 1))
    return np.stack(pages)


MADE: dict[str, Callable[[Images, np.random.Generator], Images]] = {
    "noise": noise,
    "flat colours": flat_colours,
    "gradients": gradients,
    "blurred": blurred,
    "text": text,
    "digits": digits,
}
