"""Where and how large: the machine, and the sizes of the work."""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import nn

from benchmarks.roofline import Rates, measure_rates
from besnn.checks import choose_device
from besnn.errors import InputError
from besnn.model import fashion_convnet
from besnn.model.inference import GPU_TYPE

CLASSES, FEATURES = 10, 256


@dataclass(frozen=True)
class Setting:
    """What all benchmarks of a run share.

    Attributes:
        device: where they run.
        rounds: passes of each piece of work that are timed.
        warm_up: passes before them: libraries choose algorithms, and on a GPU what comes back is recorded.
        burst: passes in a row of which the mean is one round.
        widths: of the FashionMNIST network's convolutions; the paper's unless the run is a trial.
        images: scored at a time.
        ensemble_sizes: N, from one member up.
        samples: M, few and many.
        batch: of a training step.
        steps: training steps that are timed.
        recipe: changes to the FashionMNIST recipe; none unless the run is a trial.
        stored: training features that a density holds.
        queries: features that it scores.
        side: of the matrices that the machine's rate is measured with.
        size: bytes of the copy that it is measured with.
    """

    device: torch.device
    rounds: int
    warm_up: int
    burst: int = 1
    widths: tuple[int, int, int] = (64, 128, 128)
    images: int = 500
    ensemble_sizes: tuple[int, ...] = (1, 2, 4, 8, 16)
    samples: tuple[int, int] = (16, 1024)
    batch: int = 128
    steps: int = 16
    recipe: tuple[str, ...] = ()
    stored: int = 60_000
    queries: int = 10_000
    side: int = 8192
    size: int = 2**31

    def network(self) -> nn.Sequential:
        """A fresh Φ, or the trunk of any other method."""
        return fashion_convnet(feature_dim=FEATURES, widths=self.widths)

    @property
    def products(self) -> torch.dtype:
        """The type that scoring takes matrix products in."""
        return GPU_TYPE if self.device.type == "cuda" else torch.float32

    @cached_property
    def rates(self) -> Rates:
        """What the machine was measured to do."""
        return measure_rates(self.device, self.products, self.side, self.size)


def full(device: torch.device) -> Setting:
    """The sizes that results are reported for; on a CPU the density scores a fifth of the queries, to end within minutes."""
    if device.type == "cuda":
        return Setting(device, rounds=50, warm_up=4, burst=10)
    return Setting(device, rounds=5, warm_up=1, steps=8, queries=2_000, side=1024, size=2**27)


def quick(device: torch.device) -> Setting:
    """A trial of seconds, whose figures mean nothing."""
    return Setting(
        device,
        rounds=2,
        warm_up=1,
        widths=(4, 4, 4),
        images=8,
        ensemble_sizes=(1, 2),
        samples=(4, 8),
        batch=32,
        steps=1,
        recipe=("method.noise_dim=8", "method.hidden_dim=16"),
        stored=500,
        queries=20,
        side=64,
        size=2**16,
    )


def setting_for(device: str, trial: bool) -> Setting:
    """Return the setting of a run on a device, by a name that `besnn.checks.choose_device` knows.

    >>> setting_for("cpu", trial=True).images
    8
    """
    chosen = choose_device(device)
    if chosen.type == "mps":
        raise InputError("benchmarks do not run on mps: use --device cpu or cuda")
    return (quick if trial else full)(chosen)
