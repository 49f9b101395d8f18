"""What an evaluation found: the input of the report and of ``besnn evaluate --json``."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypedDict

from besnn.errors import InputError
from besnn.evaluation.arrays import IntArray, as_labels, check_same_length
from besnn.evaluation.bootstrap import ood_intervals
from besnn.evaluation.classification import classification_metrics
from besnn.evaluation.intervals import Interval
from besnn.evaluation.metrics import OODMetrics, ood_metrics
from besnn.evaluation.scored import Rate, ScoredSet

# The figures of an evaluation, under the field names of a record; a class cannot spell the field "in".
EvaluationMetrics = TypedDict(
    "EvaluationMetrics",
    {
        "method": str,
        "in": str,
        "out": list[str],
        "accuracy": float,
        "nll": float,
        "ece": float,
        "brier": float,
        "default_score": str,
        "scores": dict[str, dict[str, OODMetrics]],
        "intervals": dict[str, dict[str, dict[str, Interval]]],
        "alpha": float,
        "threshold": float,
        "false_alarm_rate": Rate,
        "detection_rate": dict[str, Rate],
    },
)


@dataclass(frozen=True, eq=False)
class Evaluation:
    """A detector judged on known inputs, whose labels are given, and on sets of unknown ones.

    Args:
        title: what the detector is called, for people.
        method: its method by its record name, such as ``be-snn``.
        class_names: one name a class.
        alpha: the false-alarm rate that was asked for.
        threshold: τ; an input is out-of-distribution if its default score exceeds it.
        default_score: the score that decides; a key of every set's ``scores``.
        known_name: what the in-distribution set is called.
        known: the answers on it.
        labels: its true classes, ``[n]``.
        unknown: OOD set name → the answers on it.
        provenance: where the detector and this evaluation come from; plain JSON values, nested or not.
        feature_names: names of a table's columns.

    >>> known = ScoredSet([[0.9, 0.1], [0.2, 0.8]], {"entropy": [0.3, 0.5]}, p_values=[0.7, 0.3], is_ood=[0, 0])
    >>> noise = ScoredSet([[0.5, 0.5]], {"entropy": [0.7]}, p_values=[0.01], is_ood=[1])
    >>> evaluation = Evaluation(
    ...     "Pets", "be-snn", ["cat", "dog"], 0.05, 0.6, "entropy", "photos", known, [0, 1], {"noise": noise}
    ... )
    >>> evaluation.metrics()["detection_rate"]["noise"]["rate"]
    1.0
    """

    title: str
    method: str
    class_names: Sequence[str]
    alpha: float
    threshold: float
    default_score: str
    known_name: str
    known: ScoredSet
    labels: IntArray
    unknown: Mapping[str, ScoredSet]
    provenance: Mapping[str, object] = field(default_factory=dict)
    feature_names: Sequence[str] | None = None

    def __post_init__(self) -> None:
        labels = as_labels(self.labels, "labels", num_classes=len(self.class_names))
        check_same_length(labels=labels, known=self.known.probabilities)
        object.__setattr__(self, "labels", labels)
        if not 0 < self.alpha < 1:
            raise InputError(f"alpha={self.alpha}: give the false-alarm rate that was asked for, between 0 and 1")
        if not self.unknown:
            raise InputError("no OOD set: give at least one set of unknown inputs to judge the detector on")
        names = set(self.known.scores)
        for set_name, answers in [(self.known_name, self.known), *self.unknown.items()]:
            if answers.probabilities.shape[1] != len(self.class_names):
                raise InputError(
                    f"{set_name!r} has probabilities of {answers.probabilities.shape[1]} classes, "
                    f"but there are {len(self.class_names)} class names: give one name a class"
                )
            if set(answers.scores) != names or self.default_score not in names:
                raise InputError(
                    f"{set_name!r} has the scores {sorted(answers.scores)}: give the same in every set, "
                    f"the default {self.default_score!r} among them"
                )

    def metrics(self, resamples: int = 500, seed: int = 0) -> EvaluationMetrics:
        """All figures as plain numbers; ``intervals`` are 95 % bootstrap intervals of the figures in ``scores``."""
        pairs = {
            score: {name: (in_scores, answers.scores[score]) for name, answers in self.unknown.items()}
            for score, in_scores in self.known.scores.items()
        }
        return {
            "method": self.method,
            "in": self.known_name,
            "out": list(self.unknown),
            **classification_metrics(self.labels, self.known.probabilities),
            "default_score": self.default_score,
            "scores": {score: {name: ood_metrics(*pair) for name, pair in sets.items()} for score, sets in pairs.items()},
            "intervals": {
                score: {name: ood_intervals(*pair, resamples=resamples, seed=seed) for name, pair in sets.items()}
                for score, sets in pairs.items()
            },
            "alpha": self.alpha,
            "threshold": self.threshold,
            "false_alarm_rate": self.known.flagged,
            "detection_rate": {name: answers.flagged for name, answers in self.unknown.items()},
        }
