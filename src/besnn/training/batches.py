"""Batches for training: from arrays on the device or a folder of images on disk, and random augmentation of images."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeAlias

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from besnn.data import Dataset, StreamingFolder
from besnn.data.folder import DECODE_THREADS, one_ahead
from besnn.errors import InputError
from besnn.recipe.config import AugmentConfig

Data: TypeAlias = Dataset | StreamingFolder
LabelledBatch: TypeAlias = tuple[Tensor, Tensor]
"""Raw inputs `[batch, ...]` and labels `[batch]`."""


class Source(Protocol):
    """Labelled raw inputs (images as uint8), in batches on a device."""

    def __len__(self) -> int:
        """Return the number of inputs."""

    def batches(self, order: Tensor, batch_size: int) -> Iterator[LabelledBatch]:
        """Yield the inputs at the indices `order`, batch by batch."""

    def sample(self) -> Tensor:
        """Return raw inputs `[n, ...]` to compute statistics of, on the CPU: there, results do not depend on the device."""


class ArraySource:
    """A whole data set on the device, batched by indexing."""

    def __init__(self, dataset: Dataset, device: torch.device) -> None:
        if dataset.labels is None:
            raise InputError(f"data set {dataset.name!r} has no labels: training needs a class for every input")
        # torch warns about read-only arrays
        self.inputs = torch.from_numpy(np.require(dataset.inputs, requirements=["C", "W"])).to(device)
        self.labels = torch.from_numpy(np.require(dataset.labels, requirements=["C", "W"])).to(device)
        self.weights = None if dataset.weights is None else torch.from_numpy(dataset.weights)

    def __len__(self) -> int:
        return len(self.labels)

    def batches(self, order: Tensor, batch_size: int) -> Iterator[LabelledBatch]:
        """Yield the inputs at the indices `order`, batch by batch."""
        for indices in order.to(self.labels.device).split(batch_size):
            yield self.inputs[indices], self.labels[indices]

    def sample(self) -> Tensor:
        """Return all inputs."""
        return self.inputs.cpu()


class FolderSource:
    """A folder of images too large for memory, decoded by a few threads one batch ahead."""

    def __init__(self, folder: StreamingFolder, device: torch.device) -> None:
        self.folder, self.device = folder, device

    def __len__(self) -> int:
        return len(self.folder)

    def batches(self, order: Tensor, batch_size: int) -> Iterator[LabelledBatch]:
        """Yield the images at the indices `order`, batch by batch."""
        with ThreadPoolExecutor(DECODE_THREADS) as pool:
            started = (pool.map(self.folder.__getitem__, indices.tolist()) for indices in order.split(batch_size))
            for batch in one_ahead(started):
                images, labels = zip(*batch, strict=True)
                yield torch.from_numpy(np.stack(images)).to(self.device), torch.tensor(labels, device=self.device)

    def sample(self, count: int = 2000) -> Tensor:
        """Return some of the images, drawn at random."""
        order = torch.randperm(len(self), generator=torch.Generator().manual_seed(0))
        inputs, _ = next(self.batches(order[:count], count))
        return inputs.cpu()


def open_source(data: Data, device: torch.device) -> Source:
    """Return the source for arrays or for a folder."""
    return ArraySource(data, device) if isinstance(data, Dataset) else FolderSource(data, device)


def in_order(source: Source, batch_size: int) -> Iterator[LabelledBatch]:
    """Yield a whole source in order, batch by batch."""
    return source.batches(torch.arange(len(source)), batch_size)


def augment(images: Tensor, config: AugmentConfig) -> Tensor:
    """Apply a recipe's random changes to a batch of images `[batch, channels, h, w]`."""
    if not (config.crop or config.flip or config.cutout):
        return images
    if images.ndim != 4:
        raise InputError(f"training.augment is for images, but inputs have shape {list(images.shape[1:])}: leave it out")
    if config.crop:
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
