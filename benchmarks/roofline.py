"""Floors: how long a piece of work must take, by what the machine was measured to do."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Self

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode
from torch.utils.module_tracker import ModuleTracker

from benchmarks.timing import take_turns


@dataclass(frozen=True)
class Rates:
    """What a machine was measured to do in a second.

    Attributes:
        flops: floating-point operations of a large matrix product or convolution, whichever does more, in the type that the
            work uses.
        bytes: read plus written, by a large copy.
        type: that type.
    """

    flops: float
    bytes: float
    type: str

    def fields(self) -> dict[str, object]:
        """For a record."""
        return asdict(self)


@dataclass(frozen=True)
class Work:
    """The least that a piece of work takes: operations, and bytes with every input read once and every output written once."""

    flops: float
    bytes: float

    def floor(self, rates: Rates) -> float:
        """Seconds that no program goes below.

        >>> Work(flops=2e9, bytes=1e6).floor(Rates(flops=1e9, bytes=1e9, type="float32"))
        2.0
        """
        return max(self.flops / rates.flops, self.bytes / rates.bytes)


def measure_rates(device: torch.device, dtype: torch.dtype, side: int, size: int, rounds: int = 20) -> Rates:
    """The rates of a device.

    Args:
        device: which.
        dtype: of the matrices.
        side: of the matrices.
        size: bytes to copy.
        rounds: how often each is timed; the best counts, since it is a limit that is looked for.
    """
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


class _Anywhere(ModuleTracker):
    """Takes all operations for those of one module."""

    def __init__(self) -> None:
        self.parents = {"Global"}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def work_of(run: Callable[[], object], *tensors: Tensor) -> Work:
    """The operations that a piece of work was seen to do, and the bytes of the tensors that it reads and writes.

    >>> a = torch.rand(2, 3)
    >>> work_of(lambda: a @ a.t(), a)
    Work(flops=24, bytes=24)
    """
    counter = FlopCounterMode(display=False)
    counter.mod_tracker = _Anywhere()  # torch's follows modules by hooks that do not bear a gradient within a gradient
    with counter:
        run()
    return Work(counter.get_total_flops(), sum(tensor.numel() * tensor.element_size() for tensor in tensors))
