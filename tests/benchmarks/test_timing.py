"""Timing, against work whose time is known."""

import time

import pytest
import torch

from benchmarks.timing import Timing, take_turns

CPU = torch.device("cpu")


def test_median_and_quartiles():
    timing = Timing.of([5.0, 1.0, 3.0, 2.0, 4.0])
    assert (timing.seconds, timing.quartiles, timing.fastest, timing.rounds) == (3.0, (2.0, 4.0), 1.0, 5)
    assert Timing.of([1.5]) == Timing(1.5, (1.5, 1.5), 1.5, 1)


def test_takes_at_least_as_long_as_the_work():
    timing = take_turns({"sleep": lambda: time.sleep(0.01)}, CPU, rounds=3, warm_up=0)["sleep"]
    assert timing.seconds >= 0.01
    assert timing.quartiles[0] <= timing.seconds <= timing.quartiles[1]


def test_pieces_of_work_take_turns_and_warm_up():
    order = []
    timings = take_turns({name: lambda name=name: order.append(name) for name in "ab"}, CPU, rounds=2, warm_up=1)
    assert order == list("ababab")
    assert {timing.rounds for timing in timings.values()} == {2}


def test_an_error_in_the_work_is_not_hidden():
    def fail():
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        take_turns({"broken": fail}, CPU, rounds=1)
