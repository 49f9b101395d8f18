import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from besnn.recipe.config import RampConfig, ScheduleConfig, TrainingConfig
from besnn.training.schedule import factor_counts, learning_rate_factor, ramp_factor, term_factors

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
def test_warm_up_rises_in_a_line_from_nothing_to_the_schedules_start(name, warmup, progress):
    schedule = ScheduleConfig(name=name, warmup=warmup, milestones=(0.95,))
    factor = learning_rate_factor(schedule, progress)
    if progress < warmup:
        assert factor == pytest.approx(progress / warmup)
    assert 0 <= factor <= 1
    assert learning_rate_factor(schedule, warmup) == 1


@pytest.mark.parametrize("name", ["cosine", "linear"])
def test_the_rate_reaches_zero_at_the_end_whatever_the_warm_up(name):
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


def test_factors_are_counted_over_the_whole_run():
    late = RampConfig(start=0.5, end=0.5)
    counts = factor_counts(TrainingConfig(gradient_every=4, ramps={"gradient": late}), steps=16)
    assert counts == {(("gradient", 0.0),): 14, (("gradient", 4.0),): 2}  # at steps 8 and 12
