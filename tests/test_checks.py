"""Checks at the public boundary: each refusal names the value and the remedy, in one line."""

import math
import re

import numpy as np
import pytest
import torch
from torch._subclasses import FakeTensorMode

from besnn.checks import (
    as_floating,
    as_integers,
    as_numpy,
    check_choice,
    check_distances,
    check_fractions,
    check_inputs,
    check_labels,
    check_same_length,
    check_sizes,
    check_weights,
    choose_device,
    like,
)
from besnn.errors import BesnnError, InputError

nan, inf = math.nan, math.inf

GOOD = {
    "inputs": (check_inputs, (torch.rand(2, 3),)),
    "inputs-images": (check_inputs, (torch.rand(2, 3, 4, 4),)),
    "inputs-empty": (check_inputs, (torch.rand(0, 3),)),
    "inputs-meta": (check_inputs, (torch.empty(2, 3, device="meta"),)),
    "labels": (check_labels, (torch.tensor([0, 2, 1]), 3, 3)),
    "labels-of-members": (check_labels, (torch.tensor([[0, 2, 1], [1, 1, 0]]), 3, 3, 2)),
    "labels-shared-by-members": (check_labels, (torch.tensor([0, 2, 1]), 3, 3, 2)),
    "labels-empty": (check_labels, (torch.tensor([], dtype=torch.int64), 3, 0)),
    "labels-meta": (check_labels, (torch.empty(2, dtype=torch.int64, device="meta"), 3, 2)),
    "distances": (check_distances, (torch.rand(2, 3, 4),)),
    "distances-infinite": (check_distances, (torch.full((1, 1, 2), inf),)),
    "distances-meta": (check_distances, (torch.empty(1, 1, 2, device="meta"),)),
}

BAD = {
    "inputs-list": (check_inputs, ([[1.0]],), "inputs are a list: convert them with torch.as_tensor"),
    "inputs-array": (check_inputs, (np.ones((2, 2)),), "inputs are a ndarray"),
    "inputs-integer": (check_inputs, (torch.ones(2, 2, dtype=torch.int32),), r"dtype torch.int32: .*inputs.float\(\)"),
    "inputs-vector": (check_inputs, (torch.ones(4),), r"shape \[4\]: the first axis is the batch, so add one with inputs\["),
    "inputs-nan": (check_inputs, (torch.tensor([[1.0, nan], [nan, 0.0]]),), "hold 2 values that are NaN or infinite: remove"),
    "inputs-infinite": (check_inputs, (torch.tensor([[-inf]]),), "hold 1 values"),
    "labels-list": (check_labels, ([0, 1], 2, 2), "labels are list: pass class indices as an integer tensor"),
    "labels-float": (check_labels, (torch.tensor([0.0]), 2, 1), "labels are torch.float32"),
    "labels-bool": (check_labels, (torch.tensor([True]), 2, 1), "labels are torch.bool"),
    "labels-column": (check_labels, (torch.zeros(3, 1).long(), 2, 3), r"shape \[3, 1\]: expected one .* the 3 inputs"),
    "labels-of-more-members": (check_labels, (torch.zeros(3, 3, dtype=torch.int64), 2, 3, 2), r"shape \[3, 3\]"),
    "labels-low": (check_labels, (torch.tensor([0, -1, 5]), 3, 3), "label -1 is out of range: with 3 classes"),
    "labels-high": (check_labels, (torch.tensor([0, 3]), 3, 2), "label 3 is out of range: with 3 classes labels are 0 to 2"),
    "distances-list": (check_distances, ([[[1.0]]],), "distances are list: pass a floating-point tensor"),
    "distances-matrix": (check_distances, (torch.ones(5, 2),), r"shape \[5, 2\]: .*for one member use distances\[None\]"),
    "distances-nan": (check_distances, (torch.tensor([[[nan]]]),), "distances hold NaN: check"),
    "choice": (check_choice, ("norm", "layer", ["batch", "group"]), "norm 'layer' is unknown: choose from 'batch', 'group'"),
    "ragged": (as_numpy, ([[1, 2], [3]], "scores"), "scores is ragged .*: give rows of equal length"),
    "words": (as_floating, (["a"], "scores"), "scores are not numbers: pass a tensor or an array of floats"),
    "nan": (as_floating, ([1.0, nan], "scores"), "scores hold 1 NaN: find where they come from"),
    "fractional": (as_integers, ([0.5], "groups"), "groups have dtype float64: pass integers"),
}

BAD_NAMED = {
    "no-class": (check_sizes, {"num_classes": 0}, "num_classes=0: give a whole number, 1 or more"),
    "no-members": (check_sizes, {"members": 0}, "members=0: give a whole number, 1 or more"),
    "half-a-member": (check_sizes, {"members": 1.5}, "members=1.5"),
    "negative-weight": (check_weights, {"entropy": -1.0}, "entropy=-1.0: pass a finite number of 0 or more"),
    "nan-weight": (check_weights, {"entropy": nan}, "entropy=nan"),
    "fraction-of-1": (check_fractions, {"alpha": 1.0}, "alpha=1.0: pass a number between 0 and 1, both excluded"),
    "fraction-of-0": (check_fractions, {"alpha": 0.1, "delta": 0}, "delta=0"),
    "lengths": (check_same_length, {"a": np.ones(2), "b": np.ones(3)}, r"lengths differ \(a 2, b 3\): give one row per input"),
}


@pytest.mark.parametrize(("check", "arguments"), GOOD.values(), ids=GOOD.keys())
def test_good(check, arguments):
    check(*arguments)


@pytest.mark.parametrize(("check", "arguments", "message"), BAD.values(), ids=BAD.keys())
def test_bad(check, arguments, message):
    with pytest.raises(InputError, match=message) as raised:
        check(*arguments)
    assert isinstance(raised.value, BesnnError)
    assert isinstance(raised.value, ValueError)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(("check", "arguments", "message"), BAD_NAMED.values(), ids=BAD_NAMED.keys())
def test_bad_named_values(check, arguments, message):
    with pytest.raises(InputError, match=message):
        check(**arguments)


def test_good_named_values():
    check_choice("norm", "batch", ("batch", "group"))
    check_sizes(2, members=np.int64(1))
    check_weights(entropy=0, gradient=0.5)
    check_fractions(alpha=0.05)
    check_same_length(labels=np.ones(2), scores=np.ones((2, 3)))


def test_numbers_become_tensors_and_come_back_in_the_callers_kind():
    half = torch.tensor([1.5], dtype=torch.bfloat16, requires_grad=True)
    assert as_floating(half, "x").dtype == torch.float32
    assert not as_floating(half, "x").requires_grad
    assert as_floating(torch.tensor([1]), "x").dtype == as_floating(np.float32([0.1]), "x").dtype == torch.float64
    assert as_numpy(half, "x").tolist() == [1.5]
    assert as_integers(torch.tensor([3], dtype=torch.uint8), "x").dtype == as_integers([], "x").dtype == torch.int64
    assert isinstance(like(torch.ones(1), [1.0]), np.ndarray)
    assert isinstance(like(torch.ones(1), torch.ones(1)), torch.Tensor)


def test_values_are_not_read_where_there_are_none():
    with FakeTensorMode():
        check_inputs(torch.rand(2, 3))
        check_distances(torch.rand(1, 2, 3))


def test_values_are_not_read_while_a_graph_is_exported():
    class Checked(torch.nn.Module):
        def forward(self, x):
            check_inputs(x)
            return x + 1

    program = torch.export.export(Checked(), (torch.rand(2, 3),), dynamic_shapes=({0: torch.export.Dim("batch")},))
    assert torch.equal(program.module()(torch.zeros(5, 3)), torch.ones(5, 3))


@pytest.mark.parametrize(
    ("gpus", "mps", "name", "expected"),
    [
        (2, True, "auto", "cuda"),
        (0, True, "auto", "mps"),
        (0, False, "auto", "cpu"),
        (2, False, "cuda", "cuda"),
        (2, False, "gpu", "cuda"),
        (2, False, "cuda:1", "cuda:1"),
        (2, False, "cpu", "cpu"),
        (0, True, "mps", "mps"),
    ],
)
def test_devices_by_name(monkeypatch, gpus, mps, name, expected):
    with_devices(monkeypatch, gpus, mps)
    assert choose_device(name) == torch.device(expected)


@pytest.mark.parametrize(
    ("gpus", "name", "words"),
    [
        (2, "cuda:2", "device 'cuda:2' is not available on this machine: use cuda:0 or cuda:1 or cpu"),
        (0, "cuda", "device 'cuda' is not available on this machine: use cpu"),
        (0, "gpu", "device 'gpu' is not available"),
        (2, "mps", "device 'mps' is not available"),
        (2, "tpu", "device 'tpu' is unknown: use auto, cpu, cuda, cuda:N or mps"),
        (2, "cuda:", "device 'cuda:' is unknown"),
        (2, "cuda:-1", "device 'cuda:-1' is unknown"),
        (2, "cpu\n", "is unknown"),
    ],
)
def test_devices_that_are_not_there_are_refused(monkeypatch, gpus, name, words):
    with_devices(monkeypatch, gpus, mps=False)
    with pytest.raises(InputError, match=re.escape(words)):
        choose_device(name)


def with_devices(monkeypatch, gpus, mps):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)
