"""The result of an evaluation: the input of the report and of ``besnn evaluate --json``."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypedDict

import numpy as np
import numpy.typing as npt

from besnn.checks import as_numpy, check_fractions, check_same_length
from besnn.detection.conformal import FEW_SCORES, Interval, binomial_interval, conformal_rank, false_alarm_range
from besnn.detection.label_rule import LabelRule
from besnn.errors import InputError
from besnn.evaluation.checks import FloatArray, IntArray, as_labels, as_probabilities, as_scores
from besnn.evaluation.classification import classification_metrics, expected_calibration_error
from besnn.evaluation.metrics import OODMetrics, ood_intervals, ood_metrics
from besnn.evaluation.selective import (
    LabelMetrics,
    SelectiveMetrics,
    decision_confidence,
    label_set_metrics,
    selective_metrics,
)

NO_BREAK = "\N{NO-BREAK SPACE}"
METHOD_NAMES = {
    "be-snn": "BE-SNN",
    "duq": "DUQ",
    "gaussian": "Gaussian classifier",
    "softmax": "Softmax network",
    "deep-ensemble": "Deep ensemble",
    "batch-ensemble": "BatchEnsemble",
}


class Rate(TypedDict):
    """A rate of alarms with its exact 95 % binomial interval."""

    rate: float
    low: float
    high: float
    flagged: int
    n: int


@dataclass(frozen=True, eq=False)
class ScoredSet:
    """What a detector says about one set of n inputs, as arrays.

    Args:
        probabilities: ``[n, classes]``.
        scores: score name → ``[n]``; higher = more out-of-distribution.
        p_values: ``[n]``, of the default score.
        is_ood: ``[n]``, the decisions.
        inputs: for examples in the report: images ``[n, c, h, w]`` or table rows ``[n, d]``.
        names: name of each input, such as its file name; the row number unless given.
        label_sets: ``[n, classes]``, the classes that an input may have; only the most probable one unless given.
        unsure: ``[n]``, whether an input is accepted but its label is not sure; none is unless given.

    >>> probabilities, scores = np.array([[0.9, 0.1], [0.5, 0.5]]), {"energy": np.array([0.1, 0.8])}
    >>> answers = ScoredSet(probabilities, scores, p_values=np.array([0.7, 0.01]), is_ood=np.array([False, True]))
    >>> answers.counts
    {'known': 1, 'unsure': 0, 'unknown': 1}
    """

    probabilities: FloatArray
    scores: Mapping[str, FloatArray]
    p_values: FloatArray
    is_ood: npt.NDArray[np.bool_]
    inputs: npt.NDArray[Any] | None = None
    names: Sequence[str] | None = None
    label_sets: npt.NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, bool))
    unsure: npt.NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, bool))

    def __post_init__(self) -> None:
        arrays: dict[str, npt.NDArray[Any]] = {
            "probabilities": as_probabilities(self.probabilities, "probabilities"),
            "p_values": as_scores(self.p_values, "p_values"),
            "is_ood": as_scores(self.is_ood, "is_ood") != 0,
        }
        arrays["label_sets"] = np.eye(arrays["probabilities"].shape[1], dtype=bool)[arrays["probabilities"].argmax(axis=1)]
        if self.label_sets.size:
            arrays["label_sets"] = as_numpy(self.label_sets, "label_sets")
        arrays["unsure"] = as_scores(self.unsure, "unsure") != 0 if self.unsure.size else np.zeros(len(arrays["is_ood"]), bool)
        if self.inputs is not None:
            arrays["inputs"] = as_numpy(self.inputs, "inputs")
            if arrays["inputs"].ndim not in (2, 4):
                shape = list(arrays["inputs"].shape)
                raise InputError(f"inputs have shape {shape}: give images [n, c, h, w] or table rows [n, d]")
        scores = {name: as_scores(values, f"score {name!r}") for name, values in self.scores.items()}
        check_same_length(**arrays, **{f"score {name!r}": values for name, values in scores.items()})
        if self.names is not None and len(self.names) != len(arrays["probabilities"]):
            raise InputError(f"{len(self.names)} names for {len(arrays['probabilities'])} inputs: give one name per input")
        for name, array in arrays.items():
            object.__setattr__(self, name, array)
        object.__setattr__(self, "scores", scores)

    def __len__(self) -> int:
        return len(self.probabilities)

    @property
    def predictions(self) -> IntArray:
        """The most probable class of each input, ``[n]``."""
        predictions: IntArray = self.probabilities.argmax(axis=1)
        return predictions

    @property
    def flagged(self) -> Rate:
        """The share of inputs that the detector flagged as out-of-distribution."""
        flagged = int(self.is_ood.sum())
        low, high = binomial_interval(flagged, len(self))
        return Rate(rate=flagged / len(self), low=low, high=high, flagged=flagged, n=len(self))

    @property
    def counts(self) -> dict[str, int]:
        """How many inputs are known, unsure and unknown."""
        unknown, unsure = int(self.is_ood.sum()), int((self.unsure & ~self.is_ood).sum())
        return {"known": len(self) - unsure - unknown, "unsure": unsure, "unknown": unknown}

    def name_of(self, row: int) -> str:
        """Return the name of the input in a row."""
        return f"#{row}" if self.names is None else self.names[row]


# The figures of an evaluation, with the field names of a record; a class cannot have a field "in".
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
        "labels": LabelMetrics,
        "selective": dict[str, SelectiveMetrics],
        "decisions": dict[str, dict[str, int]],
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
    """A detector evaluated on labelled known inputs and on sets of unknown inputs.

    Args:
        alpha: the false-alarm rate that the detector was calibrated for.
        threshold: τ; an input is out-of-distribution if its default score exceeds it.
        default_score: the score that decides; a key of every set's ``scores``.
        known: the results on the in-distribution set, whose true classes are ``labels`` ``[n]``.
        unknown: OOD set name → the results on it.
        provenance: where the detector and this evaluation come from; plain JSON values, nested or not.
        calibrated: how many inputs the threshold was set from, and with which δ; without it, false alarms are not judged.
        label_rule: the temperature of the probabilities and the promises about labels.

    >>> def answers(*scores):
    ...     probabilities = np.array([[0.9, 0.1], [0.2, 0.8]])
    ...     return ScoredSet(probabilities, {"energy": np.array(scores)}, np.ones(2), np.array(scores) > 0.5)
    >>> known, noise = answers(0.1, 0.3), answers(0.4, 0.9)
    >>> evaluation = Evaluation(
    ...     title="Mine", method="softmax", class_names=["left", "right"], alpha=0.05, threshold=0.5, default_score="energy",
    ...     known_name="test", known=known, labels=np.array([0, 1]), unknown={"noise": noise},
    ... )
    >>> evaluation.metrics(resamples=10)["detection_rate"]["noise"]["rate"]
    0.5
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
    calibrated: int | None = None
    delta: float | None = None
    label_rule: LabelRule | None = None

    def __post_init__(self) -> None:
        labels = as_labels(self.labels, "labels", num_classes=len(self.class_names))
        check_same_length(labels=labels, known=self.known.probabilities)
        object.__setattr__(self, "labels", labels)
        check_fractions(alpha=self.alpha)
        if not self.unknown:
            raise InputError("no OOD set: give at least one set of unknown inputs")
        names = set(self.known.scores)
        for set_name, answers in [(self.known_name, self.known), *self.unknown.items()]:
            if answers.probabilities.shape[1] != len(self.class_names):
                found = f"{set_name!r} has probabilities of {answers.probabilities.shape[1]} classes"
                raise InputError(f"{found}, but there are {len(self.class_names)} class names: give one name per class")
            if set(answers.scores) != names or self.default_score not in names:
                found = f"{set_name!r} has the scores {sorted(answers.scores)}"
                raise InputError(f"{found}: give the same in every set, including the default {self.default_score!r}")

    def metrics(self, resamples: int = 500, seed: int = 0) -> EvaluationMetrics:
        """Return all figures as plain numbers; ``intervals`` are 95 % bootstrap intervals of the figures in ``scores``."""
        pairs = {
            score: {name: (in_scores, answers.scores[score]) for name, answers in self.unknown.items()}
            for score, in_scores in self.known.scores.items()
        }
        return {
            "method": self.method,
            "in": self.known_name,
            "out": list(self.unknown),
            **classification_metrics(self.labels, self.known.probabilities),
            "labels": self.label_metrics(),
            "selective": self._selective_metrics(),
            "decisions": {name: answers.counts for name, answers in {self.known_name: self.known, **self.unknown}.items()},
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

    def label_metrics(self) -> LabelMetrics:
        """Return the figures about the labels of accepted known inputs, and about probabilities before scaling."""
        known, rule = self.known, self.label_rule or LabelRule(len(self.class_names))
        unscaled = known.probabilities**rule.temperature
        sure = ~known.is_ood & ~known.unsure
        return {
            "ece_unscaled": expected_calibration_error(self.labels, unscaled / unscaled.sum(axis=1, keepdims=True)),
            "temperature": rule.temperature,
            "sets": label_set_metrics(known.label_sets, self.labels, ~known.is_ood),
            "alpha": rule.alpha,
            "error_of_known": float((known.predictions != self.labels)[sure].mean()) if sure.any() else 0.0,
            "max_error": rule.max_error,
        }

    def _selective_metrics(self) -> dict[str, SelectiveMetrics]:
        """Return the areas for three orders: by probability, by the deciding score, and by both, as the detector decides."""
        orders: dict[str, Callable[[ScoredSet], FloatArray]] = {
            "probability": lambda each: each.probabilities.max(axis=1),
            self.default_score: lambda each: -each.scores[self.default_score],
            "decision": lambda each: decision_confidence(each.probabilities, each.p_values, self.alpha),
        }
        wrong = self.known.predictions != self.labels
        return {
            name: selective_metrics(order(self.known), wrong, {each: order(answers) for each, answers in self.unknown.items()})
            for name, order in orders.items()
        }

    def summary(self) -> list[str]:
        """Describe the evaluation in plain sentences, for readers who do not know AUROC."""
        accuracy = float((self.known.predictions == self.labels).mean())
        right = f"It predicted the right class for {percent(accuracy)} of {len(self.known):,} known inputs ({self.known_name})."
        several = len(self.class_names) > 1
        does = f"sorts inputs into {len(self.class_names)} classes" if several else f"knows one class, {self.class_names[0]}"
        return [
            f"“{self.title}” ({method_name(self.method)}) {does}, and raises an alarm when an input looks like nothing it was "
            "trained on.",
            *([right] if several else []),
            f"It may raise a false alarm on at most {100 * self.alpha:g}{NO_BREAK}% of known inputs. " + self._false_alarms(),
            *(_caught(name, answers.flagged) for name, answers in self.unknown.items()),
            *(self._labels_in_words() if several else []),
            *self._uncertain_threshold(),
        ]

    def _false_alarms(self) -> str:
        """Say how many false alarms there were, and whether chance explains them."""
        observed = self.known.flagged
        counted = f"It did on {percent(observed['rate'])} of them ({observed['flagged']:,} of {observed['n']:,})"
        if self.calibrated is None:
            return f"{counted}."
        rank = conformal_rank(self.calibrated, self.alpha, self.delta)
        low, high = false_alarm_range(self.calibrated, rank, observed["n"])
        chance = f"with a threshold from {self.calibrated:,} inputs, chance alone gives {percent(low / observed['n'])} to "
        chance += f"{percent(high / observed['n'])} in 19 of 20 evaluations"
        if observed["flagged"] > high:
            return f"{counted}, more than chance explains: these inputs differ from those it was calibrated on ({chance})."
        if observed["flagged"] < low:
            return f"{counted}, fewer than chance explains ({chance})."
        return f"{counted}, in line with that: {chance}."

    def _labels_in_words(self) -> list[str]:
        """Say how good the labels of accepted known inputs are, compared with what was promised."""
        if self.label_rule is None or self.label_rule.alpha is None:
            return []
        counts, figures = self.known.counts, self.label_metrics()
        sets, wrong = figures["sets"], figures["error_of_known"]
        accepted = f"Of {sets['accepted']:,} known inputs that it accepted, it was sure of the label of {counts['known']:,}"
        promise = (
            "" if self.label_rule.max_error is None else f" (promised: at most {100 * self.label_rule.max_error:g}{NO_BREAK}%)"
        )
        return [
            f"{accepted}, and {percent(wrong)} of these labels were wrong{promise}; {counts['unsure']:,} were unsure.",
            f"Their label sets held the true class for {percent(sets['coverage'])} (promised: at least "
            f"{100 * (1 - self.label_rule.alpha):g}{NO_BREAK}%), with {sets['mean_size']:.2f} labels on average.",
        ]

    def _uncertain_threshold(self) -> list[str]:
        """Say so if a threshold from few inputs is so high that far fewer unknown inputs are caught than could be."""
        if self.calibrated is None or self.calibrated >= FEW_SCORES:
            return []
        score = self.default_score
        usual = np.quantile(self.known.scores[score], 1 - self.alpha, method="higher")
        could = {name: float(np.mean(answers.scores[score] > usual)) for name, answers in self.unknown.items()}
        missed = [name for name, answers in self.unknown.items() if could[name] > answers.flagged["rate"] + 0.05]
        if not missed:
            return []
        better = " and ".join(f"{percent(could[name])} ({name})" for name in missed)
        return [
            f"Its threshold was set from only {self.calibrated:,} inputs and came out high. One that flags "
            f"{100 * self.alpha:g}{NO_BREAK}% of these known inputs would catch {better}: calibrate again with "
            f"{FEW_SCORES} or more inputs of known kinds (besnn calibrate)."
        ]


def method_name(method: str) -> str:
    """Return a method's name for readers; an unknown one is returned as it is."""
    return METHOD_NAMES.get(method, method)


def percent(share: float) -> str:
    """Format a share in percent, never rounded up to 100 % or down to 0 %.

    >>> [percent(share).replace(NO_BREAK, " ") for share in (0.0444, 1, 0.9999, 0.0001)]
    ['4.4 %', '100 %', '> 99.9 %', '< 0.1 %']
    """
    if share in (0, 1):
        figure = f"{100 * share:.0f}"
    elif share > 0.9995:
        figure = f">{NO_BREAK}99.9"
    elif share < 0.0005:
        figure = f"<{NO_BREAK}0.1"
    else:
        figure = f"{100 * share:.1f}"
    return f"{figure}{NO_BREAK}%"


def _caught(name: str, caught: Rate) -> str:
    passed = caught["n"] - caught["flagged"]
    rest = f"{passed:,} passed as known" if passed else "none passed as known"
    return f"Of {caught['n']:,} unknown inputs ({name}) it caught {percent(caught['rate'])}; {rest}."
