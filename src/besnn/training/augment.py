"""Random changes to training images, made for a whole batch on its device."""

import torch
import torch.nn.functional as F
from torch import Tensor

from besnn.errors import InputError
from besnn.training.config import AugmentConfig


def augment(images: Tensor, config: AugmentConfig) -> Tensor:
    """The changes that a recipe asks for, to images `[batch, channels, h, w]`."""
    if not config.crop and not config.flip:
        return images
    if images.ndim != 4:
        raise InputError(f"training.augment is for images, but an input here has shape {list(images.shape[1:])}: leave it out")
    if config.crop:
        images = random_crop(images, config.crop)
    return random_flip(images) if config.flip else images


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
