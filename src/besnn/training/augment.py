"""Random changes to training images, made for a whole batch on its device."""

import torch
import torch.nn.functional as F
from torch import Tensor

from besnn.errors import InputError
from besnn.recipe.config import AugmentConfig


def augment(images: Tensor, config: AugmentConfig) -> Tensor:
    """The changes that a recipe asks for, to images `[batch, channels, h, w]`."""
    if not (config.crop or config.flip or config.cutout):
        return images
    if images.ndim != 4:
        raise InputError(f"training.augment is for images, but an input here has shape {list(images.shape[1:])}: leave it out")
    if config.crop:
        images = random_crop(images, config.crop)
    if config.flip:
        images = random_flip(images)
    return random_cutout(images, config.cutout) if config.cutout else images


def random_crop(images: Tensor, padding: int) -> Tensor:
    """Shifts each image by up to `padding` pixels in both directions, filling with reflections.

    Args:
        images: `[batch, channels, h, w]`, floating point.
        padding: the largest shift, smaller than h and w.
    """
    batch, channels, height, width = images.shape
    if padding >= min(height, width):
        raise InputError(f"training.augment.crop={padding} is too much for images of {height}×{width}: lower it")
    padded = F.pad(images, [padding] * 4, mode="reflect")
    top, left = torch.randint(0, 2 * padding + 1, (2, batch, 1), device=images.device)
    rows = (top + torch.arange(height, device=images.device))[:, None, :, None]
    columns = (left + torch.arange(width, device=images.device))[:, None, None, :]
    each = torch.arange(batch, device=images.device)[:, None, None, None]
    return padded[each, torch.arange(channels, device=images.device)[None, :, None, None], rows, columns]


def random_flip(images: Tensor) -> Tensor:
    """Mirrors about half of the images, left to right."""
    flip = torch.rand(len(images), 1, 1, 1, device=images.device) < 0.5
    return torch.where(flip, images.flip(-1), images)


def random_cutout(images: Tensor, side: int) -> Tensor:
    """Sets one square of each image to 0, the mean of preprocessed images (DeVries & Taylor 2017).

    Args:
        images: `[batch, channels, h, w]`.
        side: of the square, in pixels. Its centre may be any pixel, so that it may reach over the edge.
    """
    batch, _, height, width = images.shape
    if side > min(height, width):
        raise InputError(f"training.augment.cutout={side} is too much for images of {height}×{width}: lower it")

    def covered(length: int) -> Tensor:
        first = torch.randint(-(side // 2), length - side // 2, (batch, 1), device=images.device)
        places = torch.arange(length, device=images.device)
        return (places >= first) & (places < first + side)

    square = covered(height)[:, None, :, None] & covered(width)[:, None, None, :]
    return images.masked_fill(square, 0)
