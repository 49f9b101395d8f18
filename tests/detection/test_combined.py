"""The combination: its parts' surprise, and the guarantee after calibration."""

import math

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from besnn.detection import CombinedScore, ConformalThreshold
from besnn.detection.combined import FAR, TailProbability
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


@given(reference=NUMBERS, scores=NUMBERS)
@example(reference=[0.0, 0.0, 0.0, 0.0, 1e-45], scores=[0.0, 1.0, 2.0, 50.0, 100.0])  # the smallest number but zero
def test_surprise_rises_and_never_ties_beyond_the_reference(reference: list[float], scores: list[float]) -> None:
    if min(reference) == max(reference):
        reference[0] += 1
    tail = TailProbability(torch.tensor(reference))
    surprise = tail.surprise(torch.tensor(sorted(scores)))
    assert (surprise >= 0).all()
    assert (surprise.diff() >= -1e-5).all()
    beyond = tail.surprise(torch.tensor(reference).max() * torch.ones(3) + torch.tensor([0.0, 10.0, 20.0]))
    assert (beyond.diff() > 0).all()


def test_the_tail_is_that_of_an_exponential() -> None:
    """For exponential scores −log p is the score itself, and must stay so beyond the data."""
    reference = torch.from_numpy(np.random.default_rng(0).exponential(size=20000))
    far = torch.tensor([15.0, 30.0], dtype=torch.float64)
    torch.testing.assert_close(TailProbability(reference).surprise(far), far, rtol=0.15, atol=0)


def test_infinite_scores_are_the_extremes() -> None:
    tail = TailProbability(torch.arange(10.0))
    assert tail.surprise(torch.tensor([-math.inf, math.inf])).tolist() == [0.0, math.inf]


def test_single_precision_scores_among_double_precision_neighbours() -> None:
    reference = torch.tensor([0.0, 1.0, 1.0 + 1e-12, 2.0], dtype=torch.float64)
    assert TailProbability(reference).surprise(torch.tensor([1.0])).isfinite().all()


def test_combination_is_the_sum_of_surprises() -> None:
    reference, batch = two_scores(500, 0), two_scores(30, 1)
    expected = sum(TailProbability(reference[name]).surprise(batch[name]) for name in reference)
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
    assert torch.equal(CombinedScore(combined.state()).score(batch), combined.score(batch))


@pytest.mark.parametrize("wrong", [[1.0] * 50, [1.0], [1.0, math.inf], [0.0, math.nan], [], [[1.0, 2.0], [3.0, 4.0]]])
def test_refuses_a_reference_without_a_tail(wrong: list[float]) -> None:
    with pytest.raises(InputError, match="reference scores"):
        CombinedScore({"entropy": torch.tensor(wrong)})


def test_refuses_other_scores_than_the_reference_has() -> None:
    with pytest.raises(InputError, match="no reference scores"):
        CombinedScore({})
    with pytest.raises(InputError, match=r"\['entropy'\].*\['density', 'entropy'\]"):
        CombinedScore(two_scores(50, 0)).score({"entropy": torch.ones(3)})


references = hnp.arrays(np.float64, st.integers(2, 60), elements=st.floats(-10, 10)).filter(lambda a: np.ptp(a) > 1e-3)


@given(references)
def test_at_a_knot_the_surprise_is_that_of_the_share_at_least_as_high(reference):
    tail = TailProbability(torch.from_numpy(reference))
    shares = [(1 + np.sum(reference >= knot)) / (1 + len(reference)) for knot in tail.knots.tolist()]
    np.testing.assert_allclose(tail.surprise(tail.knots).numpy(), -np.log(shares), rtol=1e-9, atol=1e-12)
    assert {reference.min(), reference.max()} <= set(tail.knots.tolist())


def test_a_rounding_error_does_not_jump_where_scores_nearly_tie():
    generator = torch.Generator().manual_seed(0)
    spread = 2 * torch.rand(700, generator=generator, dtype=torch.float64)
    saturated = math.log(10) - 1e-6 * torch.rand(300, generator=generator, dtype=torch.float64)
    tail = TailProbability(torch.cat([spread, saturated]))
    near = saturated - 1e-7
    assert float((tail.surprise(saturated) - tail.surprise(near)).abs().max()) < 1e-4


def test_scores_that_differ_by_rounding_alone_are_all_alike():
    tail = TailProbability(torch.tensor([2.3, 2.3000002]))
    low, high = tail.surprise(torch.tensor([2.3, 2.3000002]))
    assert float(high - low) < 0.05


def test_scores_up_to_the_last_unnoticed_one_are_as_good_as_that_one() -> None:
    reference, scores = two_scores(300, 0), two_scores(200, 1, strange=1.0)
    tail = TailProbability(reference["density"], beyond=FAR)
    inexact = scores["density"].clamp_min(tail.unnoticed)
    assert 20 < (inexact > scores["density"]).sum() < 180
    assert torch.equal(tail.surprise(inexact), tail.surprise(scores["density"]))


def test_a_far_score_counts_only_beyond_most_known_inputs() -> None:
    reference = two_scores(1000, 0)
    combined, entropy = CombinedScore(reference, far={"density": FAR}), CombinedScore({"entropy": reference["entropy"]})
    known = combined.score(reference) - entropy.score({"entropy": reference["entropy"]})
    assert (known > 0).float().mean().item() == pytest.approx(math.exp(-FAR), abs=0.02)
    strange = {"entropy": reference["entropy"][:1], "density": 100 * reference["density"].max()[None]}
    surprise = TailProbability(reference["density"]).surprise(strange["density"])
    expected = entropy.score({"entropy": strange["entropy"]}) + 2 * (surprise - FAR)
    torch.testing.assert_close(combined.score(strange), expected)
    tail = combined.tails["density"]
    torch.testing.assert_close(tail.network()(reference["density"]), tail.surprise(reference["density"]), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("n", "upper"), [(9, 3), (60, 10), (1000, 50)])
def test_the_slope_of_the_tail_comes_from_several_scores(n, upper):
    reference = torch.arange(n).double().square()
    tail = TailProbability(reference)
    excess = reference[-upper:] - reference[-1 - upper]
    beyond = tail.surprise(torch.tensor([reference[-1], reference[-1] + 1.0]))
    torch.testing.assert_close(beyond.diff(), (1 / excess.mean())[None], rtol=1e-6, atol=0)
