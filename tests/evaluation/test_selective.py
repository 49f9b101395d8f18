"""Areas under risk-coverage curves and label sets, against brute force over every threshold."""

import numpy as np
import pytest

from besnn.evaluation import augrc, aurc, label_set_metrics, scod_aurc
from besnn.evaluation.selective import decision_confidence


def draw(n=60, seed=0, digits=1):
    rng = np.random.default_rng(seed)
    confidence = rng.random(n).round(digits)
    return confidence, rng.random(n) > confidence


@pytest.mark.parametrize("digits", [1, 6])
def test_aurc_is_the_mean_error_among_inputs_at_least_as_confident(digits):
    confidence, wrong = draw(digits=digits)
    weights = np.random.default_rng(1).random(len(wrong))
    plain = np.mean([wrong[confidence >= each].mean() for each in confidence])
    assert aurc(confidence, wrong) == pytest.approx(plain)
    risks = [np.average(wrong[confidence >= each], weights=weights[confidence >= each]) for each in confidence]
    assert aurc(confidence, wrong, weights) == pytest.approx(np.average(risks, weights=weights))


def test_aurc_of_the_best_order_is_the_least():
    wrong = np.repeat([False, True], [80, 20])
    best = aurc(-wrong.astype(float), wrong)
    assert best == pytest.approx(0.2 * 0.2)  # ties are answered together: 20 inputs at full coverage, with an error of 20 %
    assert aurc(np.arange(100)[::-1], wrong) == pytest.approx(np.mean([max(0, k - 80) / k for k in range(1, 101)]))


@pytest.mark.parametrize("seed", range(2))
def test_augrc_is_the_area_under_answered_errors(seed):
    confidence, wrong = draw(seed=seed, digits=6)
    answered_wrongly = np.append(0, np.cumsum(wrong[np.argsort(-confidence)])) / len(wrong)
    assert augrc(confidence, wrong) == pytest.approx(np.trapezoid(answered_wrongly, dx=1 / len(wrong)))


def test_augrc_with_ties_is_the_mean_over_their_orders():
    confidence, wrong = draw(n=12)
    rng = np.random.default_rng(0)
    orders = [augrc(confidence + 1e-6 * rng.random(12), wrong) for _ in range(2000)]
    assert augrc(confidence, wrong) == pytest.approx(np.mean(orders), abs=1e-3)
    assert augrc([0.1, 0.2], [False, False]) == 0
    assert augrc([0.1, 0.2], [True, True]) == 0.5


def test_scod_counts_every_answer_to_an_unknown_input_as_wrong():
    confidence, wrong = draw(n=40)
    strange = np.random.default_rng(2).random(80).round(1)
    pooled, errors = np.concatenate([confidence, strange, confidence]), np.concatenate([wrong, np.ones(80, bool), wrong])
    assert scod_aurc(confidence, wrong, strange) == pytest.approx(aurc(pooled, errors))  # the known ones twice: as many of each
    assert scod_aurc(confidence, wrong, np.full(7, -1.0)) < scod_aurc(confidence, wrong, np.full(7, 2.0))


def test_a_flagged_input_is_less_sure_the_smaller_its_p_value():
    probabilities = np.array([[0.9, 0.1], [0.6, 0.4], [0.9, 0.1]])
    assert decision_confidence(probabilities, np.array([0.5, 0.05, 0.01]), 0.05) == pytest.approx([0.9, 0.6, 0.18])


def test_label_sets_are_judged_on_accepted_inputs():
    sets = np.array([[True, True, False], [False, True, False], [False, False, False]])
    found = label_set_metrics(sets, [0, 2, 1], np.array([True, True, False]))
    assert found == {"coverage": 0.5, "mean_size": 1.5, "accepted": 2}
    assert label_set_metrics(sets[2:], [1], np.array([False])) == {"coverage": 1.0, "mean_size": 0.0, "accepted": 0}
