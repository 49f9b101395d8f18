"""Scaled probabilities, label sets and the tests of a largest error, each against a plain computation."""

import numpy as np
import pytest
import torch
from scipy.stats import binom

from besnn.detection.label_rule import LabelRule, answer_confidence, fit_temperature, nonconformity, scaled
from besnn.evaluation import expected_calibration_error


def draw(n=4000, classes=5, sharpness=3.0, seed=0):
    """Labels that follow softmax(logits), and log-probabilities that are too sharp by a factor."""
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(n, classes, generator=generator, dtype=torch.float64)
    labels = torch.multinomial(logits.softmax(dim=1), 1, generator=generator)[:, 0]
    return (sharpness * logits).log_softmax(dim=1), labels


def test_the_temperature_that_was_put_in_is_found_and_calibrates():
    log_probabilities, labels = draw()
    temperature = fit_temperature(log_probabilities, labels)
    assert temperature == pytest.approx(3.0, rel=0.05)
    new, truth = draw(seed=1)
    before = expected_calibration_error(truth, new.exp())
    after = expected_calibration_error(truth, scaled(new, temperature))
    assert after < 0.04 < 0.1 < before


def test_a_few_right_rows_do_not_make_every_probability_one():
    log_probabilities = torch.tensor([[0.9, 0.1]] * 4).log()
    assert 0.3 < fit_temperature(log_probabilities, torch.zeros(4, dtype=torch.int64)) < 1


def test_scaling_keeps_the_order_of_classes_and_survives_impossible_ones():
    probabilities = scaled(torch.tensor([[0.0, -3.0, -torch.inf]]), 4.0)
    assert bool(torch.isfinite(probabilities).all())
    assert probabilities[0].argsort(descending=True).tolist() == [0, 1, 2]


def test_adaptive_nonconformity_is_the_mass_of_more_probable_classes():
    probabilities = torch.rand(50, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).softmax(dim=1)
    brute = [[sum(p for p in row if p > own) for own in row] for row in probabilities.tolist()]
    np.testing.assert_allclose(nonconformity(probabilities, "adaptive"), brute, atol=1e-12)
    np.testing.assert_allclose(nonconformity(probabilities), 1 - probabilities)


def test_a_label_set_always_holds_the_most_probable_class():
    rule = LabelRule(3, alpha=0.1, thresholds=torch.full((3,), 0.2))
    _, sets, codes = rule(torch.tensor([[0.4, 0.35, 0.25], [0.9, 0.05, 0.05]]).log(), torch.tensor([False, False]))
    assert sets.tolist() == [[True, False, False], [True, False, False]]
    assert codes.tolist() == [0, 0]


def brute_force_confidence(confidence, wrong, proposals, max_error, delta):
    candidates = [*sorted(set(proposals), reverse=True), 0.0]
    passing = []
    for candidate in candidates:
        answered = confidence > candidate
        p = binom.cdf(wrong[answered].sum(), answered.sum(), max_error) if answered.any() else 1.0
        passing.append(p <= delta / 4)
    reached = []
    for share in (0.25, 0.5, 0.75, 1.0):
        place = round(share * (len(candidates) - 1))
        while place < len(candidates) and passing[place]:
            reached.append(place)
            place += 1
    return candidates[max(reached)] if reached else None


@pytest.mark.parametrize("seed", range(20))
def test_the_lowest_confidence_equals_that_of_brute_force(seed):
    rng = np.random.default_rng(seed)
    confidence, proposals = rng.uniform(0.2, 1, (2, 300)).round(2)
    wrong = rng.random(300) > confidence
    expected = brute_force_confidence(confidence, wrong, proposals, 0.2, 0.1)
    assert answer_confidence(confidence, wrong, proposals, 0.2, 0.1) == expected


def test_no_confidence_is_found_where_none_can_be_shown():
    nothing = np.zeros(0)
    assert answer_confidence(nothing, nothing.astype(bool), np.array([0.5]), 0.1, 0.1) is None
    assert answer_confidence(np.full(500, 0.9), np.ones(500, bool), np.array([0.5]), 0.1, 0.1) is None
    assert answer_confidence(np.full(500, 0.9), np.zeros(500, bool), np.array([0.5]), 0.1, 0.1) == 0.0
