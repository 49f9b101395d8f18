"""The inputs worth a look: the known ones that a detector finds strangest, and the unknown ones it finds ordinary."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from besnn.evaluation.arrays import IntArray
from besnn.evaluation.result import Evaluation
from besnn.evaluation.scored import ScoredSet


@dataclass(frozen=True, eq=False)
class Examples:
    """Some inputs of one set, images ``[k, c, h, w]`` or table rows ``[k, d]``, and what to say of each."""

    heading: str
    inputs: npt.NDArray[Any]
    facts: list[dict[str, str]]


def telling_examples(evaluation: Evaluation, count: int = 12) -> Iterator[Examples]:
    """The strangest known inputs, then each unknown set's most ordinary ones; sets without inputs are left out."""
    known = evaluation.known
    if known.inputs is not None:
        chosen = np.argsort(-known.scores[evaluation.default_score], kind="stable")[:count]
        true_classes = [evaluation.class_names[label] for label in evaluation.labels[chosen]]
        facts = _facts(evaluation, known, chosen)
        labelled = [
            {"input": fact["input"], "true class": name, **fact} for name, fact in zip(true_classes, facts, strict=True)
        ]
        yield Examples(f"The strangest known inputs ({evaluation.known_name})", known.inputs[chosen], labelled)
    for name, answers in evaluation.unknown.items():
        if answers.inputs is not None:
            chosen = np.argsort(answers.scores[evaluation.default_score], kind="stable")[:count]
            facts = _facts(evaluation, answers, chosen)
            yield Examples(f"The most ordinary unknown inputs ({name})", answers.inputs[chosen], facts)


def _facts(evaluation: Evaluation, answers: ScoredSet, rows: IntArray) -> list[dict[str, str]]:
    scores, predictions = answers.scores[evaluation.default_score], answers.predictions
    return [
        {
            "input": answers.name_of(row),
            "taken for": evaluation.class_names[predictions[row]],
            "score": f"{scores[row]:.3g}",
            "p-value": f"{answers.p_values[row]:.2g}",
            "decision": "flagged" if answers.is_ood[row] else "accepted",
        }
        for row in rows
    ]
