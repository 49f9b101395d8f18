"""Where the trainer's batches come from: arrays on the device, or a folder of images on the disk."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeAlias

import numpy as np
import torch
from torch import Tensor

from besnn.data import Dataset, StreamingFolder
from besnn.data.folder import DECODE_THREADS
from besnn.errors import InputError

Data: TypeAlias = Dataset | StreamingFolder
LabelledBatch: TypeAlias = tuple[Tensor, Tensor]
"""Raw inputs `[batch, ...]` and labels `[batch]`."""


class Source(Protocol):
    """Labelled inputs in their raw type (images as uint8), handed out on a device."""

    def __len__(self) -> int:
        """How many inputs."""
        ...

    def batches(self, order: Tensor, batch_size: int) -> Iterator[LabelledBatch]:
        """The inputs at the indices `order`, batch by batch."""
        ...

    def sample(self) -> Tensor:
        """Raw inputs `[n, ...]` to take statistics of, on the CPU: there they come out the same whatever the device."""
        ...


class ArraySource:
    """A whole data set on the device, batched by indexing.

    Attributes:
        inputs: raw inputs `[n, ...]`.
        labels: `[n]`.
    """

    def __init__(self, dataset: Dataset, device: torch.device) -> None:
        if dataset.labels is None:
            raise InputError(f"data set {dataset.name!r} has no labels: training needs a class for every input")
        # torch warns of arrays that it may not write to
        self.inputs = torch.from_numpy(np.require(dataset.inputs, requirements=["C", "W"])).to(device)
        self.labels = torch.from_numpy(np.require(dataset.labels, requirements=["C", "W"])).to(device)

    def __len__(self) -> int:
        return len(self.labels)

    def batches(self, order: Tensor, batch_size: int) -> Iterator[LabelledBatch]:
        """The inputs at the indices `order`, batch by batch."""
        for indices in order.to(self.labels.device).split(batch_size):
            yield self.inputs[indices], self.labels[indices]

    def sample(self) -> Tensor:
        """All inputs."""
        return self.inputs.cpu()


class FolderSource:
    """A folder of images too large for memory, decoded by a few threads one batch ahead of the one in use."""

    def __init__(self, folder: StreamingFolder, device: torch.device) -> None:
        self.folder, self.device = folder, device

    def __len__(self) -> int:
        return len(self.folder)

    def batches(self, order: Tensor, batch_size: int) -> Iterator[LabelledBatch]:
        """The images at the indices `order`, batch by batch."""
        with ThreadPoolExecutor(DECODE_THREADS) as pool:
            started = (pool.map(self.folder.__getitem__, indices.tolist()) for indices in order.split(batch_size))
            current = next(started, None)
            while current is not None:
                following = next(started, None)
                images, labels = zip(*current, strict=True)
                yield torch.from_numpy(np.stack(images)).to(self.device), torch.tensor(labels, device=self.device)
                current = following

    def sample(self, count: int = 2000) -> Tensor:
        """Some of the images, drawn at random."""
        order = torch.randperm(len(self), generator=torch.Generator().manual_seed(0))
        inputs, _ = next(self.batches(order[:count], count))
        return inputs.cpu()


def open_source(data: Data, device: torch.device) -> Source:
    """The source for whole arrays or for a folder."""
    return ArraySource(data, device) if isinstance(data, Dataset) else FolderSource(data, device)


def in_order(source: Source, batch_size: int) -> Iterator[LabelledBatch]:
    """All of a source in order, batch by batch."""
    return source.batches(torch.arange(len(source)), batch_size)


def load_rows(folder: StreamingFolder) -> Dataset:
    """All images of a folder, or of a part of one, in memory."""
    images = np.empty((len(folder), *folder.spec.shape), np.uint8)
    filled = 0
    for batch, _ in in_order(FolderSource(folder, torch.device("cpu")), 256):
        images[filled : filled + len(batch)] = batch.numpy()
        filled += len(batch)
    return Dataset(images, folder.labels, folder.class_names, folder.name, folder.hashes)
