"""How fast weights start."""

import math

import pytest
import torch

from besnn.errors import InputError
from besnn.layers import BatchEnsembleLinear, initialiser, normal, ones, random_sign

COUNT = 20_000


def drawn(init, dtype=torch.float32):
    return init(torch.empty(2, COUNT // 2, dtype=dtype)).double()


@pytest.mark.parametrize("std", [0.0, 0.25, 0.5])
def test_normal(std):
    values = drawn(normal(std))
    assert float(values.mean()) == pytest.approx(1, abs=4 * std / math.sqrt(COUNT) + 1e-12)
    assert float(values.std()) == pytest.approx(std, rel=0.05)


@pytest.mark.parametrize("probability", [0.0, 0.3, 0.5, 1.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_random_sign(probability, dtype):
    values = drawn(random_sign(probability), dtype)
    assert torch.equal(values.abs(), torch.ones_like(values))
    assert float((values > 0).double().mean()) == pytest.approx(probability, abs=4 * 0.5 / math.sqrt(COUNT))


def test_ones():
    assert torch.equal(drawn(ones()), torch.ones(2, COUNT // 2, dtype=torch.float64))


def test_layers_start_as_told():
    layer = BatchEnsembleLinear(100, 50, members=100, init=normal(0.1))
    assert float(layer.r.detach().std()) == pytest.approx(0.1, rel=0.1)
    assert float(layer.s.detach().std()) == pytest.approx(0.1, rel=0.1)
    assert not torch.equal(layer.r[0], layer.r[1])
    usual = BatchEnsembleLinear(100, 50, members=100)
    assert float(usual.r.detach().std()) == pytest.approx(0.25, rel=0.1)


@pytest.mark.parametrize(
    ("name", "mean", "std"),
    [("normal", 1, 0.25), ("normal:0.5", 1, 0.5), ("sign", 0, 1), ("sign:0.75", 0.5, math.sqrt(0.75)), ("ones", 1, 0)],
)
def test_by_name(name, mean, std):
    values = drawn(initialiser(name))
    assert float(values.mean()) == pytest.approx(mean, abs=0.05)
    assert float(values.std()) == pytest.approx(std, abs=0.02)


@pytest.mark.parametrize("name", ["uniform", "", "ones:2", "Normal"])
def test_unknown_name(name):
    with pytest.raises(InputError, match=f"fast-weight initialiser '{name}' is unknown: use normal, normal:STD, sign"):
        initialiser(name)


@pytest.mark.parametrize("name", ["normal:wide", "normal:-1", "normal:nan", "normal:inf", "sign:2", "sign:-0.1", "sign:half"])
def test_wrong_number(name):
    with pytest.raises(InputError, match=f"fast-weight initialiser '{name}': "):
        initialiser(name)


@pytest.mark.parametrize("std", [-0.1, math.nan, math.inf])
def test_wrong_std(std):
    with pytest.raises(InputError, match=f"std={std}: a standard deviation is a finite number"):
        normal(std)


@pytest.mark.parametrize("probability", [-0.1, 1.1, math.nan])
def test_wrong_probability(probability):
    with pytest.raises(InputError, match=f"probability={probability}"):
        random_sign(probability)
