"""The drift monitor: exact p-values, Ville's bound by simulation, power, and restarts."""

import itertools
import json
import math
import tracemalloc

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from scipy.stats import beta, binom, kstest

from besnn.detection.drift import BETS, DriftMonitor, ScoreCounts, initial_log_capital, log_payoffs, play
from besnn.errors import InputError


def monitor_of(seed: int, **settings: float) -> DriftMonitor:
    calibration = np.random.default_rng(10_000 + seed).normal(size=1000)
    return DriftMonitor.from_calibration(calibration, ood_threshold=1.6449, seed=seed, **settings)


def delay(monitor: DriftMonitor, before: np.ndarray, after: np.ndarray) -> int:
    monitor.update(before)
    monitor.update(after)
    alarm_step = monitor.status().alarm_step
    assert alarm_step is not None
    return alarm_step - len(before)


def test_p_values_equal_their_definition_one_by_one() -> None:
    rng = np.random.default_rng(0)
    edges, scores, ties = np.linspace(-1, 1, 9), rng.normal(size=500), 1 - rng.random(500)
    counts = ScoreCounts(edges)
    counts.add(scores[:50])
    cells = np.digitize(scores, edges)
    expected = [((cells[:t] > cells[t]).sum() + ties[t] * (cells[: t + 1] == cells[t]).sum()) / (t + 1) for t in range(50, 500)]
    np.testing.assert_allclose(counts.p_values(scores[50:], ties[50:]), expected, rtol=1e-14)
    np.testing.assert_array_equal(counts.counts, np.bincount(cells, minlength=10))


def test_p_values_are_uniform_and_independent_though_scores_tie() -> None:
    rng = np.random.default_rng(1)
    counts = ScoreCounts(np.array([0.5, 1.5, 2.5]))
    p_values = counts.p_values(rng.integers(0, 4, size=20_000).astype(float), 1 - rng.random(20_000))
    assert kstest(p_values, "uniform").pvalue > 1e-3
    assert abs(np.corrcoef(p_values[1:], p_values[:-1])[0, 1]) < 4 / math.sqrt(len(p_values))


@pytest.mark.parametrize("bet", range(BETS))
def test_every_bet_is_fair(bet: int) -> None:
    """In x = log p, where the payoff of tiny p-values is smooth: ∫ f(eˣ) eˣ dx = 1."""
    edges = [-400.0, -100.0, -20.0, *np.log(np.arange(1, 11) / 10)]
    parts = [
        quad(lambda x: float(np.exp(log_payoffs(np.array([math.exp(x)]))[0, bet] + x)), low + 1e-12, high)[0]
        for low, high in itertools.pairwise(edges)
    ]
    assert sum(parts) == pytest.approx(1, abs=1e-6)


def test_false_alarms_keep_to_villes_bound() -> None:
    streams, level = 300, 5.0
    rng = np.random.default_rng(2)
    alarms = 0
    for seed in range(streams):
        monitor = monitor_of(seed, alarm_level=level)
        monitor.update(rng.normal(size=1000))
        alarms += monitor.status().alarm
    assert alarms <= binom(streams, 1 / level).ppf(0.999)


@pytest.mark.parametrize("step", [0, 10**8])
def test_capital_is_neither_made_nor_lost_but_by_payoffs(step: int) -> None:
    """With payoffs of 1 it stays; and it is linear in each payoff, so fair bets leave its mean: a martingale."""
    before = initial_log_capital()
    still, path = play(before, np.zeros((100_000, BETS)), step)
    np.testing.assert_allclose(path, path[0], atol=1e-12)
    if step == 0:
        np.testing.assert_allclose(path, 0, atol=1e-12)
    factors = np.random.default_rng(0).uniform(0.1, 3, size=BETS)
    one_step, _ = play(before, np.zeros((1, BETS)), step)
    np.testing.assert_allclose(play(before, np.log(factors)[None], step)[0], one_step + np.log(factors), rtol=1e-12)
    assert (still > before).all()  # the reserve released capital


def test_capital_follows_its_recursion() -> None:
    payoffs = np.random.default_rng(1).uniform(0.2, 2, size=(300, BETS))
    rest = [(1 + (t + 1) / 100) ** -0.25 for t in range(301)]
    capital, totals = np.full(BETS, (1 - rest[0]) / BETS), []
    for t, payoff in enumerate(payoffs, start=1):
        capital = (capital + (rest[t - 1] - rest[t]) / BETS) * payoff
        totals.append(capital.sum() + rest[t])
    log_capital, path = play(initial_log_capital(), np.log(payoffs), 0)
    np.testing.assert_allclose(log_capital, np.log(capital), rtol=1e-10)
    np.testing.assert_allclose(path, np.log(totals), rtol=1e-10)


CHANGES = {
    "strange": lambda rng: rng.normal(size=1000) + 5,
    "shifted": lambda rng: rng.normal(size=1000) + 0.7,
    "one in ten strange": lambda rng: rng.normal(size=1000) + 5 * (rng.random(1000) < 0.1),
    "too ordinary": lambda rng: rng.normal(size=1000) * 0.5 - 1,
    "stuck": lambda rng: np.full(1000, 0.3),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("ordinary", [0, 20_000])
def test_finds_changes_early_and_late(change: str, ordinary: int) -> None:
    for seed in range(3):
        rng = np.random.default_rng(seed)
        assert delay(monitor_of(seed), rng.normal(size=ordinary), CHANGES[change](rng)) < 400


def test_without_initial_scores_a_change_within_the_stream_is_found() -> None:
    rng = np.random.default_rng(0)
    monitor = DriftMonitor(np.linspace(0, 1, 100)[1:-1], ood_threshold=0.95)
    assert delay(monitor, rng.uniform(size=2000), rng.uniform(0.9, 1, size=200)) < 50


def test_one_call_or_many_come_to_the_same() -> None:
    scores = np.random.default_rng(4).normal(size=1500) * 1.2
    at_once, in_parts, one_by_one = (monitor_of(0) for _ in range(3))
    path = at_once.update(scores)
    parts = np.concatenate([in_parts.update(part) for part in np.split(scores, [0, 1, 7, 700, 1499])])
    singly = np.concatenate([one_by_one.update([score]) for score in scores])
    np.testing.assert_allclose(parts, path, rtol=0, atol=1e-9)
    np.testing.assert_allclose(singly, path, rtol=0, atol=1e-9)
    assert in_parts.state_dict()["counts"] == at_once.state_dict()["counts"]
    assert one_by_one.status().alarm_step == at_once.status().alarm_step


def test_continues_exactly_after_a_restart() -> None:
    rng = np.random.default_rng(5)
    running, first, second = monitor_of(0), rng.normal(size=777), rng.normal(size=500) + 0.3
    running.update(first)
    saved = json.loads(json.dumps(running.state_dict(), allow_nan=False))
    restarted = monitor_of(0)
    restarted.load_state_dict(saved)
    assert restarted.status() == running.status()
    np.testing.assert_array_equal(restarted.update(second), running.update(second))
    assert restarted.status() == running.status()
    assert restarted.state_dict() == running.state_dict()


def test_refuses_the_state_of_another_monitor() -> None:
    with pytest.raises(InputError, match="different edges"):
        monitor_of(0).load_state_dict(monitor_of(1).state_dict())
    with pytest.raises(InputError, match="different alarm_level"):
        monitor_of(0).load_state_dict(monitor_of(0, alarm_level=50.0).state_dict())
    with pytest.raises(InputError, match=r"lacks \['counts'\]"):
        monitor_of(0).load_state_dict({key: value for key, value in monitor_of(0).state_dict().items() if key != "counts"})


def test_after_a_hundred_million_steps_a_change_is_still_found() -> None:
    """A monitor put where so many ordinary steps would have left it."""
    monitor = monitor_of(0)
    monitor.update(np.random.default_rng(0).normal(size=1000))
    state = monitor.state_dict()
    state["steps"] = 10**8
    state["counts"] = [count * 50_000 for count in state["counts"]]
    monitor.load_state_dict(state)
    rng = np.random.default_rng(1)
    path = monitor.update(rng.normal(size=2000))
    assert np.isfinite(path).all()
    assert (np.diff(path) != 0).all()
    monitor.update(CHANGES["one in ten strange"](rng))
    assert monitor.status().alarm_step is not None
    assert monitor.status().alarm_step > 10**8


def test_a_lasting_change_overflows_nothing() -> None:
    monitor = DriftMonitor([0.0], ood_threshold=1.0, initial_scores=[-1.0] * 10**6)
    path = monitor.update(np.ones(20_000))
    assert np.isfinite(path).all()
    assert path[-1] > 10_000  # e to that power would have overflowed


def test_memory_does_not_grow_with_the_stream() -> None:
    monitor, rng = monitor_of(0), np.random.default_rng(0)
    sizes = []
    tracemalloc.start()
    for _ in range(4):
        monitor.update(rng.normal(size=5000))
        sizes.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    assert sizes[-1] - sizes[0] < 20_000


def test_the_rate_is_that_of_the_window_with_its_exact_interval() -> None:
    monitor = DriftMonitor([0.0], ood_threshold=0.5, window=40)
    monitor.update([1.0] * 100)
    monitor.update(torch.tensor([0.0, 0.5, 1.0, 1.0] * 10))
    status = monitor.status()
    assert status.ood_rate == 0.5
    assert status.ood_rate_interval[0] == pytest.approx(beta(20, 21).ppf(0.025))
    assert status.ood_rate_interval[1] == pytest.approx(beta(21, 20).ppf(0.975))
    monitor.update([])
    assert monitor.status() == status


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"edges": [1.0, 0.0]}, "ascending"),
        ({"edges": [0.0, math.inf]}, "finite"),
        ({"edges": [[0.0]]}, r"edges have shape \[1, 1\]"),
        ({"alarm_level": 1.0}, r"alarm_level=1\.0"),
        ({"window": 0}, "window=0"),
        ({"initial_scores": [math.nan]}, "initial scores hold 1 NaN"),
    ],
)
def test_refuses_wrong_settings(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        DriftMonitor(**{"edges": [0.0], "ood_threshold": 1.0, **arguments})


@pytest.mark.parametrize("wrong", [[], [1.0], [1.0, math.inf]])
def test_refuses_calibration_scores_that_make_no_grid(wrong: list[float]) -> None:
    with pytest.raises(InputError, match="calibration scores must be finite"):
        DriftMonitor.from_calibration(wrong, ood_threshold=1.0)
