"""The combination: its parts' surprise, and the guarantee after calibration."""

import math

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from besnn.detection import CombinedScore, ConformalThreshold
from besnn.detection.tail import EmpiricalTail
from besnn.errors import InputError

NUMBERS = st.lists(st.integers(-3, 3).map(float) | st.floats(-100, 100, width=32), min_size=5, max_size=40)


def two_scores(n: int, seed: int, strange: float = 0.0) -> dict[str, torch.Tensor]:
    """Dependent scores in different units."""
    rng = np.random.default_rng(seed)
    common = rng.normal(size=n)
    return {
        "entropy": torch.from_numpy(1 / (1 + np.exp(-common - rng.normal(size=n)))).float(),
        "density": torch.from_numpy(1e3 * np.exp(common + strange)).float(),
    }


def test_surprise_at_the_reference_is_minus_log_p() -> None:
    reference = np.random.default_rng(0).integers(0, 50, size=200).astype(float)
    expected = -np.log((1 + (reference[None] >= reference[:, None]).sum(1)) / 201)
    found = EmpiricalTail(torch.from_numpy(reference)).surprise(torch.from_numpy(reference))
    np.testing.assert_allclose(found, expected, atol=1e-12)


@given(reference=NUMBERS, scores=NUMBERS)
@example(reference=[0.0, 0.0, 0.0, 0.0, 1e-45], scores=[0.0, 1.0, 2.0, 50.0, 100.0])  # the smallest number but zero
def test_surprise_rises_and_never_ties_beyond_the_reference(reference: list[float], scores: list[float]) -> None:
    if min(reference) == max(reference):
        reference[0] += 1
    tail = EmpiricalTail(torch.tensor(reference))
    surprise = tail.surprise(torch.tensor(sorted(scores)))
    assert (surprise >= 0).all()
    assert (surprise.diff() >= -1e-5).all()
    beyond = tail.surprise(torch.tensor(reference).max() * torch.ones(3) + torch.tensor([0.0, 10.0, 20.0]))
    assert (beyond.diff() > 0).all()


def test_the_tail_is_that_of_an_exponential() -> None:
    """For exponential scores −log p is the score itself, and must stay so beyond the data."""
    reference = torch.from_numpy(np.random.default_rng(0).exponential(size=20000))
    far = torch.tensor([15.0, 30.0], dtype=torch.float64)
    torch.testing.assert_close(EmpiricalTail(reference).surprise(far), far, rtol=0.15, atol=0)


def test_infinite_scores_are_the_extremes() -> None:
    tail = EmpiricalTail(torch.arange(10.0))
    assert tail.surprise(torch.tensor([-math.inf, math.inf])).tolist() == [0.0, math.inf]


def test_single_precision_scores_among_double_precision_neighbours() -> None:
    reference = torch.tensor([0.0, 1.0, 1.0 + 1e-12, 2.0], dtype=torch.float64)
    assert EmpiricalTail(reference).surprise(torch.tensor([1.0])).isfinite().all()


def test_combination_is_the_sum_of_surprises() -> None:
    reference, batch = two_scores(500, 0), two_scores(30, 1)
    expected = sum(EmpiricalTail(reference[name]).surprise(batch[name]) for name in reference)
    torch.testing.assert_close(CombinedScore(reference).score(batch), expected)


def test_combination_ignores_units() -> None:
    reference, batch = two_scores(500, 0), two_scores(30, 1)
    scaled = CombinedScore({name: 7 * scores - 3 for name, scores in reference.items()})
    torch.testing.assert_close(
        scaled.score({name: 7 * scores - 3 for name, scores in batch.items()}),
        CombinedScore(reference).score(batch),
        rtol=1e-3,
        atol=1e-3,
    )


def test_a_calibrated_combination_keeps_the_false_alarm_rate() -> None:
    combined, alpha = CombinedScore(two_scores(100, 0)), 0.1
    rates, power = [], []
    for seed in range(1, 1001):
        calibration = ConformalThreshold(combined.score(two_scores(99, seed)), alpha)
        rates.append(calibration.is_ood(combined.score(two_scores(100, seed + 1000))).float().mean().item())
        power.append(calibration.is_ood(combined.score(two_scores(20, seed, strange=6.0))).float().mean().item())
    assert abs(np.mean(rates) - alpha) < 4 * np.std(rates) / math.sqrt(len(rates))
    assert np.mean(power) > 0.95


def test_a_saved_combination_scores_the_same() -> None:
    combined = CombinedScore(two_scores(100, 0))
    batch = two_scores(30, 1)
    assert torch.equal(CombinedScore.from_state(combined.state()).score(batch), combined.score(batch))


@pytest.mark.parametrize(
    "wrong", [torch.ones(50), torch.tensor([1.0]), torch.tensor([1.0, math.inf]), torch.empty(0), torch.ones(5, 5)]
)
def test_refuses_a_reference_without_a_tail(wrong: torch.Tensor) -> None:
    with pytest.raises(InputError, match="reference scores"):
        CombinedScore({"entropy": wrong})


def test_refuses_other_scores_than_the_reference_has() -> None:
    with pytest.raises(InputError, match="no reference scores"):
        CombinedScore({})
    with pytest.raises(InputError, match=r"\['entropy'\].*\['density', 'entropy'\]"):
        CombinedScore(two_scores(50, 0)).score({"entropy": torch.ones(3)})
