"""Random changes of training images, and which of them suit the data."""

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from besnn.errors import InputError
from besnn.recipe.config import AUTO, AugmentConfig, Recipe
from besnn.training.batches import Source

ENOUGH = 2000
"""Images that are looked at before mirroring is chosen."""
CELLS, DIRECTIONS = 4, 8
"""Edges are counted in a grid of cells, by direction."""


def suit_augmentation(recipe: Recipe, source: Source) -> Recipe:
    """Return the recipe with every `auto` of its augmentation replaced by what suits the training images."""
    sections = {"training": recipe.training, "pretraining": recipe.pretraining}
    settings = [section.augment for section in sections.values() if section is not None]
    if not any(AUTO in (each.crop, each.flip) for each in settings):
        return recipe
    order = torch.randperm(len(source), generator=torch.Generator().manual_seed(0))[:ENOUGH]
    images, labels = next(source.batches(order, ENOUGH))
    if images.ndim != 4:
        raise InputError(f"training.augment is for images, but inputs have shape {list(images.shape[1:])}: leave it out")
    chosen: dict[str, object] = {"crop": min(images.shape[2:]) // 8}
    if any(each.flip == AUTO for each in settings):
        chosen["flip"] = mirror_images_belong(images.cpu().float(), labels.cpu().numpy())
    update: dict[str, object] = {}
    for name, section in sections.items():
        if section is not None:
            fields = {field: value for field, value in chosen.items() if getattr(section.augment, field) == AUTO}
            update[name] = section.model_copy(update={"augment": section.augment.model_copy(update=fields)})
    if recipe.method.mirror and recipe.training.augment.flip == AUTO:
        update["method"] = recipe.method.model_copy(update={"mirror": chosen["flip"]})
    return recipe.model_copy(update=update)


def in_words(config: AugmentConfig) -> str:
    """Say how training images are changed.

    >>> in_words(AugmentConfig(crop=4))
    'training images are shifted by up to 4 pixels, and not mirrored: mirror images are harder to recognise'
    """
    mirrored = "mirrored" if config.flip else "not mirrored: mirror images are harder to recognise"
    pixels = "1 pixel" if config.crop == 1 else f"{config.crop} pixels"
    return f"training images are shifted by up to {pixels}, and {mirrored}"


def mirror_images_belong(images: Tensor, labels: NDArray[np.int64], margin: float = 0.02) -> bool:
    """Whether mirror images, left to right, are as easy to recognise as the images `[n, channels, h, w]` themselves.

    A linear classifier of the directions of edges learns from some of the images and predicts the class of others and of their
    mirror images (five folds). For photographs it is right about as often. For digits, letters or shoes that all point to one
    side it is not, and mirror images would teach what never occurs. A difference counts if it exceeds `margin` and chance.
    """
    from sklearn.discriminant_analysis import LinearDiscriminantAnalysis  # slow to import
    from sklearn.model_selection import KFold

    if len(set(labels.tolist())) < 2 or len(labels) < 50:
        return False
    ordinary, mirrored = (edge_directions(each).numpy() for each in (images, images.flip(-1)))
    lost = np.zeros(len(labels))
    for known, new in KFold(5, shuffle=True, random_state=0).split(ordinary):
        classifier = LinearDiscriminantAnalysis(solver="lsqr", shrinkage=0.1).fit(ordinary[known], labels[known])
        right, still_right = (classifier.predict(each[new]) == labels[new] for each in (ordinary, mirrored))
        lost[new] = right.astype(np.float64) - still_right
    chance = 2 * float(lost.std()) / len(lost) ** 0.5
    return bool(lost.mean() <= max(margin, chance))


def edge_directions(images: Tensor) -> Tensor:
    """Describe images by how much edge there is in each direction and each cell of a grid, `[n, CELLS² · DIRECTIONS]`.

    These are the histograms of oriented gradients of Dalal & Triggs 2005, without their overlapping blocks.
    """
    grey = F.pad(images.mean(dim=1, keepdim=True), [1] * 4, mode="replicate")
    down, right = (grey[:, :, 2:, 1:-1] - grey[:, :, :-2, 1:-1]), (grey[:, :, 1:-1, 2:] - grey[:, :, 1:-1, :-2])
    direction = torch.atan2(down, right) * DIRECTIONS / (2 * torch.pi)
    nearest = torch.arange(DIRECTIONS).view(1, -1, 1, 1)
    apart = (direction - nearest).remainder(DIRECTIONS)
    share = (1 - torch.minimum(apart, DIRECTIONS - apart)).clamp_min(0)  # among the two nearest directions
    cells = F.adaptive_avg_pool2d(share * torch.hypot(down, right), CELLS).flatten(1)
    return F.normalize(cells, dim=1).sqrt()


def augment(images: Tensor, config: AugmentConfig) -> Tensor:
    """Apply a recipe's random changes to a batch of images `[batch, channels, h, w]`."""
    if not (config.crop or config.flip or config.cutout):
        return images
    if images.ndim != 4:
        raise InputError(f"training.augment is for images, but inputs have shape {list(images.shape[1:])}: leave it out")
    if config.crop:
        assert isinstance(config.crop, int)  # see suit_augmentation
        images = random_crop(images, config.crop)
    if config.flip:
        images = random_flip(images)
    return random_cutout(images, config.cutout) if config.cutout else images


def random_crop(images: Tensor, padding: int) -> Tensor:
    """Shift each image by up to `padding` pixels in both directions, filling with reflections."""
    batch, channels, height, width = images.shape
    if padding >= min(height, width):
        raise InputError(f"training.augment.crop={padding} is too large for images of {height}×{width}: lower it")
    padded = F.pad(images, [padding] * 4, mode="reflect")
    top, left = torch.randint(0, 2 * padding + 1, (2, batch, 1), device=images.device)
    rows = (top + torch.arange(height, device=images.device))[:, None, :, None]
    columns = (left + torch.arange(width, device=images.device))[:, None, None, :]
    each = torch.arange(batch, device=images.device)[:, None, None, None]
    return padded[each, torch.arange(channels, device=images.device)[None, :, None, None], rows, columns]


def random_flip(images: Tensor) -> Tensor:
    """Mirror about half of the images, left to right."""
    flip = torch.rand(len(images), 1, 1, 1, device=images.device) < 0.5
    return torch.where(flip, images.flip(-1), images)


def random_cutout(images: Tensor, side: int) -> Tensor:
    """Set one square of each image to 0, the mean of preprocessed images (DeVries & Taylor 2017).

    Its centre may be any pixel, so the square may extend beyond the edge.
    """
    batch, _, height, width = images.shape
    if side > min(height, width):
        raise InputError(f"training.augment.cutout={side} is too large for images of {height}×{width}: lower it")

    def covered(length: int) -> Tensor:
        first = torch.randint(-(side // 2), length - side // 2, (batch, 1), device=images.device)
        places = torch.arange(length, device=images.device)
        return (places >= first) & (places < first + side)

    square = covered(height)[:, None, :, None] & covered(width)[:, None, None, :]
    return images.masked_fill(square, 0)
