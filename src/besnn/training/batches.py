"""Batches for training: from arrays on the device or a folder of images on disk."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeAlias

import numpy as np
import torch
from torch import Tensor

from besnn.data import Dataset, StreamingFolder
from besnn.data.folder import DECODE_THREADS, one_ahead
from besnn.errors import InputError

Data: TypeAlias = Dataset | StreamingFolder
LabelledBatch: TypeAlias = tuple[Tensor, Tensor]
"""Raw inputs `[batch, ...]` and labels `[batch]`."""


class Source(Protocol):
    """Labelled raw inputs (images as uint8), in batches on a device."""

    def __len__(self) -> int:
        """Return the number of inputs, or a bound on it."""

    def batches(self, order: Tensor, batch_size: int) -> Iterator[LabelledBatch]:
        """Yield the inputs at the indices `order`, batch by batch."""


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
        """Return all inputs, to compute statistics of, on the CPU: there, results do not depend on the device."""
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
        """Return some of the images, drawn at random, on the CPU."""
        order = torch.randperm(len(self), generator=torch.Generator().manual_seed(0))
        inputs, _ = next(self.batches(order[:count], count))
        return inputs.cpu()


def open_source(data: Data, device: torch.device) -> ArraySource | FolderSource:
    """Return the source for arrays or for a folder."""
    return ArraySource(data, device) if isinstance(data, Dataset) else FolderSource(data, device)


def in_order(source: Source, batch_size: int) -> Iterator[LabelledBatch]:
    """Yield a whole source in order, batch by batch."""
    return source.batches(torch.arange(len(source)), batch_size)
