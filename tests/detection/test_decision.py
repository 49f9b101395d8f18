"""The promises of a decision, each shown by 1,000 calibrations that are drawn anew from a population whose truth is known."""

import numpy as np
import pytest
import torch

from besnn.detection import ConformalThreshold, Decision, LabelRule, fit_decision
from besnn.errors import InputError

CLASSES, RESAMPLES = 3, 1000
NAMES = [str(label) for label in range(CLASSES)]


@pytest.fixture(scope="module")
def population():
    """2,000 inputs whose scores depend on how hard they are, with overconfident probabilities."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(CLASSES, (2_000,), generator=generator)
    logits = torch.randn(2_000, CLASSES, generator=generator) + 2.5 * torch.nn.functional.one_hot(labels, CLASSES)
    scores = torch.randn(2_000, generator=generator) - logits.amax(dim=1) / 3
    return scores, (2 * logits).log_softmax(dim=1), labels


def resampled(population, size, **promises):
    """Yield, for each calibration, the false-alarm rate, coverage among accepted inputs and error among known ones."""
    scores, log_probabilities, labels = population
    for seed in range(RESAMPLES):
        rows = torch.from_numpy(np.random.default_rng(seed).integers(0, len(labels), size))
        decision = fit_decision(scores[rows], log_probabilities[rows], labels[rows], NAMES, **promises)
        decided = decision.decide(scores, log_probabilities)
        accepted, known = ~decided.is_ood, decided.codes == 0
        held = decided.label_sets.gather(1, labels[:, None])[:, 0]
        wrong = decided.probabilities.argmax(dim=1) != labels
        predicted = log_probabilities.argmax(dim=1)
        by_class = [1 - float(accepted[predicted == label].float().mean()) for label in range(CLASSES)]
        covered = [float(held[accepted & (predicted == label)].float().mean()) for label in range(CLASSES)]
        yield [
            1 - float(accepted.float().mean()),
            float(held[accepted].float().mean()),
            float(wrong[known].float().mean()) if known.any() else 0.0,
            float(known.float().mean()),
            *by_class,
            *covered,
        ]


def within(values, promised, tolerance=3.5):
    """Whether the mean of values may be at most `promised`, up to its standard error."""
    values = np.asarray(values)
    return values.mean() <= promised + tolerance * values.std() / len(values) ** 0.5


@pytest.mark.parametrize("form", ["least-ambiguous", "adaptive"])
def test_false_alarms_and_label_sets_keep_their_promises_on_average(population, form):
    alarms, coverage, *_ = np.array(list(resampled(population, 200, label_alpha=0.05, label_sets=form))).T
    assert within(alarms, 0.05)
    assert within(1 - coverage, 0.05)
    assert alarms.mean() > 0.04  # exactly 10/201
    tested = 190 - 38  # accepted calibration inputs, less those that tune the temperature
    assert coverage.mean() < 0.95 + 1 / tested + 0.005  # no more cautious than it has to be


def test_the_error_of_known_inputs_exceeds_its_limit_in_at_most_a_share_delta_of_calibrations(population):
    found = np.array(list(resampled(population, 500, max_error=0.08, delta=0.1)))
    error, known = found[:, 2], found[:, 3]
    failures = float((error > 0.08).mean())
    assert failures <= 0.1 + 3 * (0.1 * 0.9 / len(error)) ** 0.5
    assert error.mean() > 0.04  # answers are not just refused
    assert known.mean() > 0.5


def test_per_class_promises_hold_within_each_predicted_class(population):
    found = np.array(list(resampled(population, 400, per_class=True, label_alpha=0.1)))
    alarms, coverage = found[:, 4 : 4 + CLASSES], found[:, 4 + CLASSES :]
    for label in range(CLASSES):
        assert within(alarms[:, label], 0.05)
        assert within(1 - coverage[:, label], 0.1)


def test_pooled_thresholds_do_not_keep_per_class_promises():
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(2, (4000,), generator=generator)
    log_probabilities = (6.0 * torch.nn.functional.one_hot(labels, 2)).log_softmax(dim=1)
    scores = torch.randn(4000, generator=generator) * (1 + 2 * labels)  # one class is stranger by nature
    decided = fit_decision(scores, log_probabilities, labels, ["0", "1"]).decide(scores, log_probabilities)
    apart = fit_decision(scores, log_probabilities, labels, ["0", "1"], per_class=True).decide(scores, log_probabilities)
    rates = [[float(each.is_ood[labels == label].float().mean()) for label in (0, 1)] for each in (decided, apart)]
    assert rates[0][1] > 0.08
    np.testing.assert_allclose(rates[1], 0.05, atol=0.002)


def test_decisions_follow_from_flags_and_label_sets(population):
    scores, log_probabilities, labels = population
    decided = fit_decision(scores[:900], log_probabilities[:900], labels[:900], NAMES).decide(scores, log_probabilities)
    sizes = decided.label_sets.sum(dim=1)
    assert torch.equal(decided.codes == 2, decided.is_ood)
    assert torch.equal(sizes == 0, decided.is_ood)
    assert torch.equal(decided.codes == 1, sizes > 1)
    assert bool((decided.codes == 1).any())


@pytest.mark.parametrize("promises", [{}, {"per_class": True}, {"max_error": 0.1, "label_sets": "adaptive"}])
def test_a_restored_decision_decides_the_same(population, promises):
    scores, log_probabilities, labels = population
    decision = fit_decision(scores[:900], log_probabilities[:900], labels[:900], NAMES, **promises)
    again = Decision.from_state(*decision.state(), classes=CLASSES)
    for one, other in zip(decision.decide(scores, log_probabilities), again.decide(scores, log_probabilities), strict=True):
        assert torch.equal(one, other)


def test_without_labels_nothing_is_promised_about_them(population):
    scores, log_probabilities, labels = population
    bare = fit_decision(scores[:100], log_probabilities[:100], None, NAMES)
    few = fit_decision(scores[:20], log_probabilities[:20], labels[:20], NAMES)
    for decision in (bare, few, Decision.from_state({"scores": scores[:100]}, {"alpha": 0.05, "delta": None}, CLASSES)):
        assert decision.labels.alpha is None
        decided = decision.decide(scores[:500], log_probabilities[:500])
        assert torch.equal(decided.probabilities, log_probabilities[:500].exp())
        assert torch.equal(decided.label_sets.sum(dim=1), (~decided.is_ood).long())
        assert not bool((decided.codes == 1).any())


def test_what_cannot_be_promised_is_refused(population):
    scores, log_probabilities, labels = (part[:30] for part in population)
    with pytest.raises(
        InputError, match=r"23 accepted calibration inputs are too few for label_alpha=0.01: provide at least 99"
    ):
        fit_decision(scores, log_probabilities, labels, NAMES, label_alpha=0.01)
    with pytest.raises(InputError, match=r"max_error=0.01 cannot be shown from 23 accepted calibration inputs, \d+ of them"):
        fit_decision(scores, log_probabilities, labels, NAMES, max_error=0.01)
    with pytest.raises(InputError, match="promises about labels need labelled calibration data"):
        fit_decision(scores, log_probabilities, None, NAMES, max_error=0.1)
    with pytest.raises(InputError, match=r"inputs predicted as '0': \d+ calibration scores are too few for alpha=0.05"):
        fit_decision(scores, log_probabilities, labels, NAMES, per_class=True)
    with pytest.raises(InputError, match="label sets 'large' is unknown"):
        fit_decision(scores, log_probabilities, labels, NAMES, label_sets="large")


def test_a_damaged_state_is_refused(population):
    scores = population[0][:100]
    rule = LabelRule(2, alpha=0.1)
    tensors, settings = Decision(ConformalThreshold(scores), rule).state()
    with pytest.raises(ValueError, match="the calibration is of 2 classes, not 3"):
        Decision.from_state(tensors, settings, 3)
