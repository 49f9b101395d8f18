"""The chosen inputs are the extremes of the default score."""

from collections.abc import Callable

import numpy as np

from besnn.evaluation import Evaluation
from besnn.evaluation.examples import telling_examples


def test_extremes_of_the_default_score(make_evaluation: Callable[..., Evaluation]) -> None:
    evaluation = make_evaluation()
    strange, nines, scrambled = telling_examples(evaluation, count=5)
    known_order = np.argsort(-evaluation.known.scores["entropy"])[:5]
    np.testing.assert_array_equal(strange.inputs, evaluation.known.inputs[known_order])
    assert [fact["true class"] for fact in strange.facts] == [f"digit {evaluation.labels[row]}" for row in known_order]
    for shown, answers in [(nines, evaluation.unknown["eight and nine"]), (scrambled, evaluation.unknown["scrambled"])]:
        order = np.argsort(answers.scores["entropy"])[:5]
        np.testing.assert_array_equal(shown.inputs, answers.inputs[order])
        assert [fact["taken for"] for fact in shown.facts] == [f"digit {answers.predictions[row]}" for row in order]
        assert [fact["decision"] == "flagged" for fact in shown.facts] == answers.is_ood[order].tolist()
        assert "true class" not in shown.facts[0]
