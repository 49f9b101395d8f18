"""Where a run's random numbers come from: a seed for each draw, made of the run's seed and the draw's place in the run."""

from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum

import numpy as np
import torch
from torch import Tensor


class Draw(IntEnum):
    """What is drawn."""

    WEIGHTS = 0
    ORDER = 1
    AUGMENTATION = 2
    OBJECTIVE = 3


def draw_seed(seed: int, draw: Draw, *place: int) -> int:
    """A well-mixed seed for one draw: what a run draws depends only on where it is, not on how it got there."""
    words = np.random.SeedSequence([seed, draw, *place]).generate_state(1, np.uint64)
    return int(words[0]) >> 1  # torch's are signed


def epoch_order(size: int, seed: int, epoch: int) -> Tensor:
    """The order of an epoch: a permutation `[size]` that is a function of the seed and the epoch alone.

    >>> bool((epoch_order(9, seed=0, epoch=1) == epoch_order(9, seed=0, epoch=1)).all())
    True
    """
    return torch.randperm(size, generator=torch.Generator().manual_seed(draw_seed(seed, Draw.ORDER, epoch)))


@contextmanager
def own_randomness(device: torch.device) -> Iterator[None]:
    """Gives torch's random state back as it was: training seeds it, and the caller's draws are none of training's business."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        yield
