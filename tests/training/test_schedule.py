import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

from besnn.layers import BatchEnsembleConv2d, BatchEnsembleLinear
from besnn.recipe import METHODS
from besnn.recipe.config import OptimiserConfig, RampConfig, ScheduleConfig, TrainingConfig
from besnn.training import build_method
from besnn.training.schedule import (
    build_optimiser,
    learning_rate_factor,
    parameter_groups,
    ramp_factor,
    set_learning_rate,
    term_factors,
)

shares = st.floats(0, 1)
NAMES = ("cosine", "linear", "step", "constant")


@given(shares)
def test_closed_forms_without_warm_up(progress):
    assert learning_rate_factor(ScheduleConfig(name="cosine"), progress) == pytest.approx(math.cos(math.pi * progress / 2) ** 2)
    assert learning_rate_factor(ScheduleConfig(name="linear"), progress) == pytest.approx(1 - progress)
    assert learning_rate_factor(ScheduleConfig(name="constant"), progress) == 1
    expected = 1.0 if progress < 0.3 else 0.1 if progress < 0.6 else 0.01
    steps = ScheduleConfig(name="step", milestones=(0.3, 0.6))
    assert learning_rate_factor(steps, progress) == pytest.approx(expected)


@given(st.sampled_from(NAMES), st.floats(0.01, 0.9), shares)
def test_warm_up_rises_linearly_from_zero(name, warmup, progress):
    schedule = ScheduleConfig(name=name, warmup=warmup, milestones=(0.95,))
    factor = learning_rate_factor(schedule, progress)
    if progress < warmup:
        assert factor == pytest.approx(progress / warmup)
    assert 0 <= factor <= 1
    assert learning_rate_factor(schedule, warmup) == 1


@pytest.mark.parametrize("name", ["cosine", "linear"])
def test_the_rate_ends_at_zero_with_any_warm_up(name):
    assert learning_rate_factor(ScheduleConfig(name=name, warmup=0.25), 1.0) == pytest.approx(0)


@given(shares, shares, shares)
def test_ramps(start, end, progress):
    start, end = min(start, 0.99), min(end, 0.99)
    factor = ramp_factor(RampConfig(start=start, end=end), progress)
    if progress < start:
        assert factor == 0
    elif progress >= end:
        assert factor == 1
    else:
        assert factor == pytest.approx((progress - start) / (end - start))


def test_terms_without_a_ramp_keep_their_weight():
    assert term_factors(TrainingConfig(), step=3, progress=0.5) == {}


@pytest.mark.parametrize("every", [1, 2, 5])
def test_a_penalty_at_every_kth_step_weighs_the_same_over_time(every):
    training = TrainingConfig(gradient_every=every, ramps={"gradient": RampConfig(start=0.2, end=0.4)})
    for progress, expected in ((0.1, 0), (0.3, 0.5), (0.9, 1)):
        factors = [term_factors(training, step, progress)["gradient"] for step in range(10)]
        assert sum(factors) / 10 == pytest.approx(expected)
        assert sum(factor != 0 for factor in factors) == (10 / every if expected else 0)


CONFIG = OptimiserConfig(learning_rate=0.1, weight_decay=0.01, fast_rate=3.0, fast_decay=0.002)


def roles(model):
    """The role of each parameter's group, by the parameter's name."""
    names = {id(p): name for name, p in model.named_parameters()}
    found = {}
    for group in parameter_groups(model, CONFIG):
        role = {(0.1, 0.01): "decayed", (0.1 * 3.0, 0.002): "fast", (0.1, 0.0): "plain"}[group["rate"], group["weight_decay"]]
        for p in group["params"]:
            assert names[id(p)] not in found
            found[names[id(p)]] = role
    assert set(found) == set(names.values())
    return found


def test_roles_follow_what_a_parameter_is():
    network = nn.Sequential(
        BatchEnsembleConv2d(1, 2, 3, members=2),
        nn.BatchNorm2d(2),
        nn.Flatten(),
        BatchEnsembleLinear(8, 3, members=2),
        nn.Linear(3, 1),
    )
    assert roles(network) == {
        "0.weight": "decayed",
        "0.bias": "plain",
        "0.r": "fast",
        "0.s": "fast",
        "1.weight": "plain",
        "1.bias": "plain",
        "3.weight": "decayed",
        "3.bias": "plain",
        "3.r": "fast",
        "3.s": "fast",
        "4.weight": "decayed",
        "4.bias": "plain",
    }


@pytest.mark.parametrize("method", METHODS)
def test_every_parameter_of_every_method_is_in_exactly_one_group(method, tiny_recipe):
    model, _ = build_method(tiny_recipe(f"method={method}"), (1, 8, 8), 2)
    assert ("fast" in roles(model).values()) == (method in ("be-snn", "batch-ensemble"))


def test_a_weight_that_is_computed_is_no_parameter():
    network = weight_norm(nn.Linear(3, 2))
    assert set(roles(network).values()) == {"plain"}


def test_one_step_of_sgd_against_the_formula():
    layer = BatchEnsembleLinear(2, 2, members=1)
    optimiser = build_optimiser(layer, CONFIG)
    set_learning_rate(optimiser, 0.5)
    before = {name: p.detach().clone() for name, p in layer.named_parameters()}
    for p in layer.parameters():
        p.grad = torch.ones_like(p)
    optimiser.step()
    nesterov = 1.9  # the gradient, and 0.9 times the velocity, which is the gradient too
    for name, p in layer.named_parameters():
        rate = 0.05 * (3 if name in "rs" else 1)
        decay = {"weight": 0.01, "bias": 0}.get(name, 0.002)
        torch.testing.assert_close(p.detach(), before[name] - rate * nesterov * (1 + decay * before[name]))


def test_adamw_and_plain_sgd():
    layer = nn.Linear(2, 2)
    assert isinstance(build_optimiser(layer, OptimiserConfig(name="adamw")), torch.optim.AdamW)
    plain = build_optimiser(layer, OptimiserConfig(momentum=0.0))
    assert isinstance(plain, torch.optim.SGD)
    assert not plain.param_groups[0]["nesterov"]
