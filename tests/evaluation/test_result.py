"""Evaluation: its figures are those of the metrics, in the record's fields; inconsistent arrays are refused."""

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import binomtest

from besnn.detection import LabelRule
from besnn.errors import InputError
from besnn.evaluation import (
    Evaluation,
    ScoredSet,
    classification_metrics,
    expected_calibration_error,
    ood_intervals,
    ood_metrics,
)
from besnn.evaluation.result import NO_BREAK

Make = Callable[..., Evaluation]


def test_metrics_have_the_fields_of_a_record(make_evaluation: Make) -> None:
    evaluation = make_evaluation()
    figures = evaluation.metrics(resamples=20, seed=4)
    assert (figures["method"], figures["in"], figures["out"]) == ("softmax", "digits", ["eight and nine", "scrambled"])
    assert set(figures["scores"]) == {"entropy", "max-probability"}
    for score, sets in figures["scores"].items():
        for name, row in sets.items():
            pair = evaluation.known.scores[score], evaluation.unknown[name].scores[score]
            assert row == ood_metrics(*pair)
            assert figures["intervals"][score][name] == ood_intervals(*pair, resamples=20, seed=4)
    expected = classification_metrics(evaluation.labels, evaluation.known.probabilities)
    assert {name: figures[name] for name in expected} == expected
    assert json.loads(json.dumps(figures))["threshold"] == evaluation.threshold


def test_rates_count_decisions_with_exact_intervals(make_evaluation: Make) -> None:
    evaluation = make_evaluation()
    figures = evaluation.metrics(resamples=1)
    for answers, rate in [
        (evaluation.known, figures["false_alarm_rate"]),
        (evaluation.unknown["scrambled"], figures["detection_rate"]["scrambled"]),
    ]:
        flagged = int(np.sum(answers.scores["entropy"] >= evaluation.threshold))
        oracle = binomtest(flagged, len(answers)).proportion_ci(method="exact")
        assert (rate["flagged"], rate["n"], rate["rate"]) == (flagged, len(answers), flagged / len(answers))
        assert (rate["low"], rate["high"]) == pytest.approx((oracle.low, oracle.high))


def test_tensors_are_taken_in() -> None:
    answers = ScoredSet(
        torch.tensor([[0.25, 0.75]]), {"entropy": torch.tensor([0.5])}, torch.tensor([0.1]), torch.tensor([True])
    )
    assert isinstance(answers.probabilities, np.ndarray)
    assert answers.is_ood.tolist() == [True]
    assert answers.predictions.tolist() == [1]


def test_inputs_are_called_by_name_or_number() -> None:
    arrays: dict[str, Any] = {"probabilities": [[1.0], [1.0]], "scores": {}, "p_values": [1, 1], "is_ood": [0, 0]}
    assert ScoredSet(**arrays).name_of(1) == "#1"
    assert ScoredSet(**arrays, names=["a.png", "b.png"]).name_of(1) == "b.png"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"p_values": [0.1, 0.2]}, "p_values 2"),
        ({"scores": {"p_values": [0.1, 0.2]}}, "score 'p_values' 2"),
        ({"scores": {"entropy": [np.nan]}}, "score 'entropy' has 1 NaN"),
        ({"inputs": np.zeros((1, 2, 3))}, r"inputs have shape \[1, 2, 3\]"),
        ({"names": ["a", "b"]}, "2 names for 1 inputs"),
    ],
)
def test_wrong_answers_are_named(changes: dict[str, Any], words: str) -> None:
    arrays: dict[str, Any] = {
        "probabilities": [[0.5, 0.5]], "scores": {"entropy": [0.1]}, "p_values": [1.0], "is_ood": [False],
    }  # fmt: skip
    with pytest.raises(InputError, match=words):
        ScoredSet(**(arrays | changes))


def test_wrong_evaluations_are_named(make_evaluation: Make) -> None:
    other_scores = ScoredSet(np.full((1, 8), 0.125), {"entropy": [0.1]}, [1.0], [False])
    other_classes = ScoredSet([[0.5, 0.5]], {"entropy": [0.1], "max-probability": [0.5]}, [1.0], [False])
    for changes, words in [
        ({"labels": [0]}, "labels 1, known"),
        ({"unknown": {}}, "no OOD set"),
        ({"unknown": {"noise": other_scores}}, "'noise' has the scores"),
        ({"unknown": {"noise": other_classes}}, "'noise' has probabilities of 2 classes"),
        ({"unknown": {"digits": other_classes}}, "'digits' has probabilities of 2 classes"),
        ({"default_score": "energy"}, "including the default 'energy'"),
        ({"alpha": 5}, "alpha=5"),
    ]:
        with pytest.raises(InputError, match=words):
            make_evaluation(**changes)


def verdict(make: Callable[..., Evaluation], flagged: int) -> str:
    known = make().known
    is_ood = np.arange(len(known)) < flagged
    return make(known=replace(known, is_ood=is_ood)).summary()[2].replace(NO_BREAK, " ")


@pytest.mark.parametrize(
    ("share", "calibrated", "words"),
    [
        (0.1, 300, "in line with that: with a threshold from 300 inputs, chance alone gives"),
        (0.0, 300, "fewer than chance explains"),
        (0.17, 300, "more than chance explains: these inputs differ"),
        (0.17, 30, "in line with that"),  # a threshold from 30 inputs is less certain
        (0.17, None, "of {n})."),
    ],
)
def test_false_alarms_are_judged_by_what_chance_explains(
    share: float, calibrated: int | None, words: str, make_evaluation: Make
) -> None:
    n = len(make_evaluation().known)
    sentence = verdict(partial(make_evaluation, calibrated=calibrated), round(share * n))
    assert "at most 10 % of known inputs" in sentence
    assert f"({round(share * n)} of {n})" in sentence
    assert words.format(n=n) in sentence


def test_a_threshold_that_few_inputs_set_too_high_is_explained(make_evaluation: Make) -> None:
    settings = make_evaluation()
    none = {name: replace(answers, is_ood=np.zeros(len(answers), dtype=bool)) for name, answers in settings.unknown.items()}
    known = settings.known.scores["entropy"]
    usual = np.sort(known)[int(np.ceil(0.9 * (len(known) - 1)))]
    could = np.mean(settings.unknown["scrambled"].scores["entropy"] > usual)
    sentence = make_evaluation(unknown=none, calibrated=20).summary()[-1].replace(NO_BREAK, " ")
    assert "set from only 20 inputs" in sentence
    assert f"{100 * could:.1f} % (scrambled)" in sentence
    caught = {name: replace(answers, is_ood=~answers.is_ood) for name, answers in none.items()}
    for quiet in (make_evaluation(unknown=none, calibrated=500), make_evaluation(unknown=caught, calibrated=20)):
        assert "only" not in quiet.summary()[-1]


def test_every_unknown_set_has_its_sentence(make_evaluation) -> None:
    evaluation = make_evaluation()
    scrambled = evaluation.unknown["scrambled"]
    sentences = evaluation.summary()
    assert len(sentences) == 3 + len(evaluation.unknown)
    passed = int(np.sum(~scrambled.is_ood))
    assert sentences[-1].endswith(f"{passed} passed as known.")
    all_caught = replace(scrambled, is_ood=np.ones(len(scrambled), dtype=bool))
    assert make_evaluation(unknown={"noise": all_caught}).summary()[-1].endswith("none passed as known.")


def test_labels_are_judged_beside_their_promises() -> None:
    probabilities = np.array([[0.9, 0.1], [0.6, 0.4], [0.8, 0.2], [0.5, 0.5]])
    known = ScoredSet(
        probabilities,
        {"entropy": np.arange(4.0)},
        p_values=[0.9, 0.5, 0.3, 0.01],
        is_ood=[False, False, False, True],
        label_sets=np.array([[True, False], [True, True], [True, False], [False, False]]),
        unsure=np.array([False, True, False, False]),
    )
    strange = ScoredSet([[0.5, 0.5]], {"entropy": [9.0]}, [0.01], [True])
    rule = LabelRule(2, temperature=2.0, alpha=0.1, max_error=0.2, delta=0.1)
    evaluation = Evaluation(
        "T", "softmax", ["a", "b"], 0.05, 2.5, "entropy", "known", known, [0, 1, 1, 0], {"far": strange}, label_rule=rule
    )
    figures = evaluation.metrics()
    assert figures["decisions"] == {
        "known": {"known": 2, "unsure": 1, "unknown": 1},
        "far": {"known": 0, "unsure": 0, "unknown": 1},
    }
    labels = figures["labels"]
    assert labels["sets"] == {"coverage": pytest.approx(2 / 3), "mean_size": pytest.approx(4 / 3), "accepted": 3}
    assert (labels["error_of_known"], labels["alpha"], labels["max_error"]) == (0.5, 0.1, 0.2)
    sharper = probabilities**2 / (probabilities**2).sum(axis=1, keepdims=True)
    assert labels["ece_unscaled"] == pytest.approx(expected_calibration_error([0, 1, 1, 0], sharper))
    assert figures["selective"]["decision"]["scod_aurc"].keys() == {"far"}
    words = " ".join(evaluation.summary()).replace("\N{NO-BREAK SPACE}", " ")
    assert "Of 3 known inputs that it accepted, it was sure of the label of 2, and 50.0 % of these labels were wrong" in words
    assert "(promised: at most 20 %); 1 were unsure. Their label sets held the true class for 66.7 %" in words
    json.dumps(figures)
