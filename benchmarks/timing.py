"""Timing pieces of work against each other."""

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Timing:
    """Seconds of one pass: the median over rounds, the quartiles around it, and the fastest."""

    seconds: float
    quartiles: tuple[float, float]
    fastest: float
    rounds: int

    @classmethod
    def of(cls, passes: list[float]) -> "Timing":
        """The timing of some passes.

        >>> Timing.of([3.0, 1.0, 2.0]).seconds
        2.0
        """
        first, median, third = statistics.quantiles(passes, n=4, method="inclusive") if len(passes) > 1 else passes * 3
        return cls(median, (first, third), min(passes), len(passes))


def take_turns(
    work: Mapping[str, Callable[[], object]], device: torch.device, rounds: int, warm_up: int = 5, burst: int = 1
) -> dict[str, Timing]:
    """Times pieces of work, which take turns so that a machine's moods meet all of them alike.

    Args:
        work: what to time, by name.
        device: waited for before each look at the clock.
        rounds: passes of each that count.
        warm_up: passes of each, before, that don't.
        burst: passes in a row at each turn, after one that does not count, of which the mean is one round: on a GPU, where a
            pass may be shorter than waiting for it.

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
    """Waits for all that a device was told to do."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
