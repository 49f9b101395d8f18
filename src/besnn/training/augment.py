"""Random changes to training images, made for a whole batch on its device."""

import torch
import torch.nn.functional as F
from torch import Tensor


def random_crop(images: Tensor, padding: int) -> Tensor:
    """Shifts each image by up to `padding` pixels in both directions, filling with reflections.

    Args:
        images: `[batch, channels, h, w]`, floating point.
        padding: the largest shift.
    """
    batch, channels, height, width = images.shape
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
