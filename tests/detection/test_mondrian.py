"""Mondrian thresholds: each group is calibrated by itself."""

import numpy as np
import pytest
import torch

from besnn.detection import ConformalThreshold, MondrianThreshold
from besnn.errors import InputError


def grouped(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Scores whose spread depends on the group."""
    rng = np.random.default_rng(seed)
    groups = rng.integers(3, size=n)
    return rng.exponential(1.0 + 4.0 * groups), groups


def test_equals_one_threshold_a_group() -> None:
    scores, groups = grouped(400, 0)
    new_scores, new_groups = grouped(300, 1)
    mondrian = MondrianThreshold(scores, groups, alpha=0.1, delta=0.2)
    p_values, decisions = mondrian.p_values(new_scores, new_groups), mondrian.is_ood(new_scores, new_groups)
    assert isinstance(p_values, np.ndarray)
    for group in range(3):
        alone = ConformalThreshold(scores[groups == group], alpha=0.1, delta=0.2)
        assert mondrian.thresholds[group].threshold == alone.threshold
        inside = new_groups == group
        np.testing.assert_array_equal(p_values[inside], alone.p_values(new_scores[inside]))
        np.testing.assert_array_equal(decisions[inside], alone.is_ood(new_scores[inside]))


def test_keeps_the_false_alarm_rate_in_every_group() -> None:
    rates, pooled = [], []
    for repetition in range(300):
        scores, groups = grouped(300, 2 * repetition)
        new_scores, new_groups = grouped(300, 2 * repetition + 1)
        decisions = MondrianThreshold(scores, groups, alpha=0.1).is_ood(new_scores, new_groups)
        rates.append([decisions[new_groups == group].mean() for group in range(3)])
        pooled.append(ConformalThreshold(scores, alpha=0.1).is_ood(new_scores)[new_groups == 2].mean())
    error = np.std(rates, axis=0) / np.sqrt(len(rates))
    assert (np.mean(rates, axis=0) <= 0.1 + 3 * error).all()
    assert np.mean(pooled) > 0.15  # a single threshold would break the promise for the widest group


def test_answers_tensors_with_tensors() -> None:
    scores, groups = map(torch.from_numpy, grouped(300, 0))
    mondrian = MondrianThreshold(scores.float(), groups)
    p_values = mondrian.p_values(scores.float(), groups)
    assert p_values.dtype == torch.float32
    assert torch.equal(mondrian.is_ood(scores.float(), groups), p_values <= 0.05)


@pytest.mark.parametrize(
    ("scores", "groups", "message"),
    [
        ([], [], "no calibration scores"),
        ([*range(30)], [0] * 28 + [7] * 2, "group 7: 2 calibration scores are too few"),
        ([*range(30)], [0] * 29, r"scores \[30\] and groups \[29\]"),
        ([*range(30)], ["shoe"] * 30, "groups have dtype <U4"),
        ([*range(30)], [0.5] * 30, "groups have dtype float64"),
    ],
)
def test_refuses_unusable_groups(scores: list[float], groups: list[int], message: str) -> None:
    with pytest.raises(InputError, match=message):
        MondrianThreshold(scores, groups)


def test_refuses_a_group_it_was_not_calibrated_for() -> None:
    with pytest.raises(InputError, match=r"group 4 has no threshold.*known: \[0\]"):
        MondrianThreshold([*range(30)], [0] * 30).p_values([1.0, 2.0], [0, 4])
