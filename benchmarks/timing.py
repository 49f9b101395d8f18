"""Time pieces of work against each other, and against the least time that the machine needs for them."""

import math
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode
from torch.utils.module_tracker import ModuleTracker

from besnn.training.progress import Reporter


@dataclass(frozen=True)
class Timing:
    """Seconds of one pass: the median over rounds, the quartiles around it, the fastest, and the slowest but for one in 100."""

    seconds: float
    quartiles: tuple[float, float]
    fastest: float
    p99: float
    rounds: int

    @classmethod
    def of(cls, passes: list[float]) -> "Timing":
        """Summarise the seconds of some passes.

        >>> Timing.of([3.0, 1.0, 2.0]).seconds
        2.0
        """
        first, median, third = statistics.quantiles(passes, n=4, method="inclusive") if len(passes) > 1 else passes * 3
        slow = sorted(passes)[math.ceil(0.99 * len(passes)) - 1]
        return cls(median, (first, third), min(passes), slow, len(passes))


def take_turns(
    work: Mapping[str, Callable[[], object]], device: torch.device, rounds: int, warm_up: int = 5, burst: int = 1
) -> dict[str, Timing]:
    """Time pieces of work in turns, so that a machine that slows down slows all of them alike.

    Args:
        work: what to time, by name.
        device: synchronised before each look at the clock.
        rounds: timed passes of each.
        warm_up: passes of each before the first timed one.
        burst: passes in a row whose mean is one round, after one that is not timed. On a GPU a single pass may be shorter than
            the wait for it.

    >>> list(take_turns({"nothing": lambda: None}, torch.device("cpu"), rounds=3))
    ['nothing']
    """
    passes: dict[str, list[float]] = {name: [] for name in work}
    for turn in range(warm_up + rounds):
        for name, run in work.items():
            if burst > 1:
                run()
            synchronise(device)
            began = time.perf_counter()
            for _ in range(burst):
                run()
            synchronise(device)
            if turn >= warm_up:
                passes[name].append((time.perf_counter() - began) / burst)
    return {name: Timing.of(seconds) for name, seconds in passes.items()}


def synchronise(device: torch.device) -> None:
    """Wait until a device has finished all its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


class EnoughError(Exception):
    """Ends training after the timed steps."""


class StepClock(Reporter):
    """Notes the time when training starts and after every `every` steps, and ends it after that many `windows`."""

    def __init__(self, device: torch.device, every: int, windows: int) -> None:
        self.device, self.every, self.windows = device, every, windows
        self.taken = 0
        self.marks: list[float] = []

    def start(self, done: int, total: int) -> None:
        """Start the clock."""
        self.marks.append(time.perf_counter())

    def step(self) -> None:
        """Note the time after a window, and end training after the last."""
        self.taken += 1
        if self.taken % self.every == 0:
            synchronise(self.device)
            self.marks.append(time.perf_counter())
        if len(self.marks) > self.windows:
            raise EnoughError


@dataclass(frozen=True)
class Rates:
    """What a machine was measured to do per second.

    Attributes:
        flops: floating-point operations of a large matrix product or convolution, whichever is faster.
        bytes: bytes read plus bytes written by a large copy.
        type: the number type of the operations.
    """

    flops: float
    bytes: float
    type: str


@dataclass(frozen=True)
class Work:
    """The least that a piece of work takes: its operations, and reading every input and writing every output once."""

    flops: float
    bytes: float

    def floor(self, rates: Rates) -> float:
        """Return the seconds that no program can go below.

        >>> Work(flops=2e9, bytes=1e6).floor(Rates(flops=1e9, bytes=1e9, type="float32"))
        2.0
        """
        return max(self.flops / rates.flops, self.bytes / rates.bytes)


def measure_rates(device: torch.device, dtype: torch.dtype, side: int, size: int, rounds: int = 20) -> Rates:
    """Measure the rates of a device by products of `[side, side]` and copies of `size` bytes; the fastest round counts."""
    left, right = (torch.randn(side, side, device=device).to(dtype) for _ in range(2))
    channels = min(side // 4, 256)
    maps = torch.randn(16, channels, 32, 32, device=device, dtype=dtype).contiguous(memory_format=torch.channels_last)
    filters = torch.randn(channels, channels, 3, 3, device=device, dtype=dtype).contiguous(memory_format=torch.channels_last)
    source = torch.empty(size, dtype=torch.uint8, device=device).random_()
    target = torch.empty_like(source)
    work: dict[str, Callable[[], object]] = {
        "product": lambda: left @ right,
        "convolution": lambda: torch.conv2d(maps, filters, padding=1),
        "copy": lambda: target.copy_(source),
    }
    seconds = {name: timing.fastest for name, timing in take_turns(work, device, rounds, warm_up=2).items()}
    flops = max(2 * side**3 / seconds["product"], 18 * channels * maps.numel() / seconds["convolution"])
    return Rates(flops, 2 * size / seconds["copy"], str(dtype).removeprefix("torch."))


def _operations_of_fused_convolution(x: list[int], weight: list[int], *_: object, out_shape: list[int], **__: object) -> int:
    return 2 * math.prod(out_shape) * math.prod(weight[1:])


# An operation that torch's counter does not know.
_FUSED = {torch.ops.mkldnn._convolution_pointwise: _operations_of_fused_convolution}


class _Anywhere(ModuleTracker):
    """Counts all operations as those of one module."""

    def __init__(self) -> None:
        self.parents = {"Global"}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def work_of(run: Callable[[], object], *tensors: Tensor) -> Work:
    """Count the operations of a piece of work, and the bytes of the tensors that it reads and writes.

    >>> a = torch.rand(2, 3)
    >>> work_of(lambda: a @ a.t(), a)
    Work(flops=24, bytes=24)
    """
    counter = FlopCounterMode(display=False, custom_mapping=_FUSED)
    counter.mod_tracker = _Anywhere()  # torch's own fails on a gradient within a gradient
    with counter:
        run()
    return Work(counter.get_total_flops(), sum(tensor.numel() * tensor.element_size() for tensor in tensors))
