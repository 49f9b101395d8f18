"""Where the trainer's batches come from."""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from besnn.data import Dataset
from besnn.errors import InputError


class ArraySource:
    """A whole data set on the device, in the type it was stored in (images as uint8), batched by indexing.

    Attributes:
        inputs: raw inputs `[n, ...]`.
        labels: `[n]`.
    """

    def __init__(self, dataset: Dataset, device: torch.device) -> None:
        if dataset.labels is None:
            raise InputError(f"data set {dataset.name!r} has no labels: training needs a class for every input")
        self.inputs = torch.from_numpy(np.ascontiguousarray(dataset.inputs)).to(device)
        self.labels = torch.from_numpy(np.ascontiguousarray(dataset.labels)).to(device)

    def __len__(self) -> int:
        return len(self.labels)

    def batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Raw inputs and labels at some indices."""
        indices = indices.to(self.labels.device)
        return self.inputs[indices], self.labels[indices]

    def in_order(self, batch_size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """All of it in order, batch by batch."""
        return zip(self.inputs.split(batch_size), self.labels.split(batch_size), strict=True)


def epoch_order(size: int, seed: int, epoch: int) -> Tensor:
    """The order of an epoch: a permutation that is a function of the seed and the epoch alone.

    >>> bool((epoch_order(9, seed=0, epoch=1) == epoch_order(9, seed=0, epoch=1)).all())
    True
    """
    return torch.randperm(size, generator=torch.Generator().manual_seed(step_seed(seed, epoch)))


def step_seed(seed: int, step: int) -> int:
    """A well-mixed seed for one step: what a run draws depends only on where it is, not on how it got there."""
    words = np.random.SeedSequence([seed % 2**64, step]).generate_state(1, np.uint64)
    return int(words[0]) >> 1
