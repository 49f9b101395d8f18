"""What the rows of the speed benchmark share: the machine and the sizes of the work, and what a row finds."""

from dataclasses import asdict, dataclass, field
from functools import cached_property

import torch
from torch import nn

from benchmarks.timing import Rates, Timing, measure_rates
from besnn.checks import choose_device
from besnn.errors import InputError
from besnn.model import fashion_convnet
from besnn.model.inference import GPU_TYPE

CLASSES, FEATURES = 10, 256


@dataclass(frozen=True)
class Setting:
    """The machine and the sizes of the work."""

    device: torch.device
    rounds: int
    warm_up: int  # passes before the timed ones, in which libraries choose algorithms and CUDA graphs are recorded
    burst: int = 1  # passes in a row whose mean is one round
    widths: tuple[int, int, int] = (64, 128, 128)  # of the FashionMNIST network
    images: int = 500
    ensemble_sizes: tuple[int, ...] = (1, 2, 4, 8, 16)
    samples: tuple[int, int] = (16, 1024)  # class features M, few and many
    batch: int = 128  # rows per training step
    steps: int = 16
    recipe: tuple[str, ...] = ()  # changes to the FashionMNIST recipe
    stored: int = 60_000  # training features that a density holds
    queries: int = 10_000  # features that it scores
    table_rows: tuple[int, int] = (10_000, 100_000)
    files: int = 20_000  # images in a folder
    classes: tuple[int, ...] = (10, 100, 1000)
    sides: tuple[int, ...] = (32, 64, 128, 224)  # of images
    photos: tuple[int, int] = (128, 224)  # how many at once, and their sides, for a large network
    rows: tuple[int, ...] = (1_000, 10_000, 100_000, 1_000_000)  # stored by a density
    side: int = 8192  # of the matrices that the machine's rate is measured with
    size: int = 2**31  # bytes of the copy that it is measured with

    def network(self) -> nn.Sequential:
        """Return a new, untrained feature extractor."""
        return fashion_convnet(feature_dim=FEATURES, widths=self.widths)

    @property
    def products(self) -> torch.dtype:
        """The number type of matrix products in scoring."""
        return GPU_TYPE if self.device.type == "cuda" else torch.float32

    @cached_property
    def rates(self) -> Rates:
        """What the machine was measured to do."""
        return measure_rates(self.device, self.products, self.side, self.size)


def full(device: torch.device) -> Setting:
    """Return the sizes that results are reported for; on a CPU the density scores only a fifth of the queries."""
    if device.type == "cuda":
        return Setting(device, rounds=50, warm_up=4, burst=10)
    return Setting(device, rounds=5, warm_up=1, steps=8, queries=2_000, files=2_000, photos=(16, 96), side=1024, size=2**27)


def quick(device: torch.device) -> Setting:
    """Return sizes for a trial of a few seconds, whose figures mean nothing."""
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
        table_rows=(200, 300),
        files=6,
        classes=(3, 5),
        sides=(8, 16),
        photos=(8, 32),
        rows=(100, 200),
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


@dataclass(frozen=True)
class Figure:
    """How long a piece of work takes.

    Attributes:
        work: what is done; figures of the same work stand side by side.
        method: the method, by its name in records (`be-snn`, `softmax`, ...).
        variant: how it is done, in a few words.
        timing: the time of one pass.
        floor: seconds that no program on this machine can go below; None where that is not known.
        members: the number of members N.
    """

    work: str
    method: str
    variant: str
    timing: Timing
    floor: float | None = None
    members: int = 1

    def fields(self) -> dict[str, object]:
        """Return the fields for a record."""
        names = {"work": self.work, "method": self.method, "variant": self.variant, "members": self.members}
        return names | asdict(self.timing) | {"floor_seconds": self.floor}


@dataclass(frozen=True)
class Target:
    """A promise about figures: `value` must not exceed `at_most`."""

    work: str
    claim: str
    value: float
    at_most: float

    @property
    def met(self) -> bool:
        """Whether the promise is kept."""
        return self.value <= self.at_most


@dataclass(frozen=True)
class Check:
    """A comparison of what was timed with a plain version of it: `error` must not exceed `at_most`."""

    work: str
    against: str
    error: float
    at_most: float

    @property
    def passed(self) -> bool:
        """Whether the two agree."""
        return self.error <= self.at_most


@dataclass
class Findings:
    """What one or more rows of the benchmark found."""

    figures: list[Figure] = field(default_factory=list)
    targets: list[Target] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)

    def add(self, other: "Findings") -> None:
        """Append the findings of another row."""
        self.figures += other.figures
        self.targets += other.targets
        self.checks += other.checks
        self.left_out += other.left_out

    def seconds(self, work: str, method: str, variant: str | None = None) -> float:
        """Return the time of the figure with these names."""
        return next(
            figure.timing.seconds
            for figure in self.figures
            if (figure.work, figure.method) == (work, method) and variant in (None, figure.variant)
        )
