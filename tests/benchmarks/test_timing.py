"""Timing, against work whose time is known; floors, against operations and bytes counted by hand."""

import time

import pytest
import torch
from torch import nn

from benchmarks.timing import Rates, Timing, Work, measure_rates, take_turns, work_of
from besnn.layers.folding.fuse import ConvReLU

CPU = torch.device("cpu")


def test_median_and_quartiles():
    timing = Timing.of([5.0, 1.0, 3.0, 2.0, 4.0])
    assert (timing.seconds, timing.quartiles, timing.fastest, timing.rounds) == (3.0, (2.0, 4.0), 1.0, 5)
    assert Timing.of([1.5]) == Timing(1.5, (1.5, 1.5), 1.5, 1.5, 1)


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


@pytest.mark.parametrize(("flops", "size", "seconds"), [(4e9, 1e6, 4.0), (1e6, 3e9, 3.0)], ids=["arithmetic", "memory"])
def test_the_longer_of_the_two_is_the_floor(flops, size, seconds):
    assert Work(flops, size).floor(Rates(flops=1e9, bytes=1e9, type="float32")) == seconds


def test_operations_of_a_convolution():
    conv, x = nn.Conv2d(3, 8, 3, padding=1), torch.rand(2, 3, 10, 10)
    with torch.no_grad():
        work = work_of(lambda: conv(x), x)
    assert work == Work(2 * 2 * 8 * 10 * 10 * 3 * 9, 2 * 3 * 10 * 10 * 4)


def test_operations_of_a_fused_convolution():
    conv, x = nn.Conv2d(4, 8, 3, padding=1, groups=2), torch.rand(2, 4, 10, 10)
    fused = ConvReLU(conv)
    fused.pack()
    with torch.no_grad():
        assert work_of(lambda: fused(x), x) == work_of(lambda: conv(x), x)


def test_operations_of_a_gradient_within_a_gradient():
    x, weight = torch.rand(2, 3, requires_grad=True), torch.rand(3, 4, requires_grad=True)

    def run():
        (gradient,) = torch.autograd.grad((x @ weight).sum(), x, create_graph=True)
        gradient.square().sum().backward()

    product = 2 * 2 * 3 * 4
    assert work_of(run).flops == 3 * product  # forward, back to x, and from there to the weight


def test_rates_are_of_this_machine():
    rates = measure_rates(torch.device("cpu"), torch.float32, side=64, size=2**12, rounds=3)
    assert rates.flops > 1e6
    assert rates.bytes > 1e6
    assert rates.type == "float32"
