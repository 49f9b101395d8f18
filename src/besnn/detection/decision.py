"""One decision with two promises: few false alarms among known inputs, and labels that can be trusted on what is accepted."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from besnn.detection.conformal import ConformalThreshold, MondrianThreshold
from besnn.detection.label_rule import Form, LabelRule, fit_label_rule
from besnn.errors import InputError
from besnn.storage.tensor_file import under


class Decided(NamedTuple):
    """What is decided about n inputs."""

    probabilities: Tensor  # [n, classes]
    p_value: Tensor  # [n], float64
    is_ood: Tensor  # [n]
    label_sets: Tensor  # [n, classes], of booleans
    codes: Tensor  # [n], which of DECISIONS


class Decision:
    """From scores and log-probabilities to known, unsure or unknown.

    Args:
        threshold: of all calibration scores.
        labels: the rule for accepted inputs.
        by_class: thresholds for inputs of each predicted class, which then decide.

    >>> scores, log_probabilities = torch.arange(1.0, 100.0), torch.tensor([[0.9, 0.1]]).log().expand(99, 2)
    >>> decision = fit_decision(scores, log_probabilities, None, ["left", "right"])
    >>> decided = decision.decide(torch.tensor([50.0, 99.5]), log_probabilities[:2])
    >>> decided.p_value.tolist(), decided.is_ood.tolist()
    ([0.51, 0.01], [False, True])
    """

    def __init__(self, threshold: ConformalThreshold, labels: LabelRule, by_class: MondrianThreshold | None = None) -> None:
        self.threshold, self.labels, self.by_class = threshold, labels, by_class

    def decide(self, scores: Tensor, log_probabilities: Tensor) -> Decided:
        """Decide about scores `[n]` and log-probabilities `[n, classes]`, on the CPU."""
        if self.by_class is None:
            p_value, is_ood = self.threshold.p_values(scores.double()), self.threshold.is_ood(scores)
        else:
            predicted = log_probabilities.argmax(dim=1)
            p_value, is_ood = self.by_class.p_values(scores.double(), predicted), self.by_class.is_ood(scores, predicted)
        probabilities, label_sets, codes = self.labels(log_probabilities, is_ood)
        return Decided(probabilities, p_value, is_ood, label_sets, codes)

    def limits(self) -> Tensor:
        """Return τ by predicted class, `[classes]`: an input with a higher score is flagged."""
        if self.by_class is None:
            return torch.full((len(self.labels.thresholds),), self.threshold.threshold, dtype=torch.float64)
        return torch.tensor([each.threshold for each in self.by_class.thresholds.values()], dtype=torch.float64)

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return the tensors and JSON-able settings that `from_state` needs."""
        settings: dict[str, Any] = {"alpha": self.threshold.alpha, "delta": self.threshold.delta}
        tensors = {"scores": self.threshold.scores}
        if self.by_class is not None:
            groups = self.by_class.thresholds.items()
            tensors["scores"] = torch.cat([each.scores for _, each in groups])
            tensors["classes"] = torch.cat([torch.full((len(each.scores),), group) for group, each in groups])
        if self.labels.alpha is not None:
            rule, settings["labels"] = self.labels.state()
            tensors |= {f"labels/{name}": value for name, value in rule.items()}
        return tensors, settings

    @classmethod
    def from_state(cls, tensors: Mapping[str, Tensor], settings: Mapping[str, Any], classes: int) -> Self:
        """Restore the decision that `state` describes; files without labels or classes promise nothing about them."""
        rates = settings["alpha"], settings["delta"]
        by_class = MondrianThreshold(tensors["scores"], tensors["classes"], *rates) if "classes" in tensors else None
        rule = under("labels/", tensors)
        labels = LabelRule.from_state(rule, settings["labels"]) if rule else LabelRule(classes)
        for part in (labels.thresholds, *(() if by_class is None else (by_class.thresholds,))):
            if len(part) != classes:
                raise ValueError(f"the calibration is of {len(part)} classes, not {classes}")
        return cls(ConformalThreshold(tensors["scores"], *rates), labels, by_class)


def fit_decision(
    scores: Tensor,
    log_probabilities: Tensor,
    labels: Tensor | None,
    class_names: Sequence[str],
    *,
    alpha: float = 0.05,
    delta: float | None = None,
    per_class: bool = False,
    label_alpha: float | None = None,
    label_sets: Form = "least-ambiguous",
    max_error: float | None = None,
) -> Decision:
    """Calibrate a decision from scores `[n]`, log-probabilities `[n, classes]` and, if there are any, labels `[n]`.

    The label rule is fitted to the inputs strictly below the threshold. If scores do not tie, these are, given the threshold,
    independent of each other and distributed like any accepted input: so the promises about labels hold exactly, although the
    same data set the threshold.

    >>> scores, log_probabilities = torch.arange(1.0, 100.0), torch.tensor([[0.9, 0.1]]).log().expand(99, 2)
    >>> fit_decision(scores, log_probabilities, None, ["left", "right"], alpha=0.1).limits().tolist()
    [90.0, 90.0]
    """
    threshold, by_class = ConformalThreshold(scores, alpha, delta), None
    predicted = log_probabilities.argmax(dim=1)
    if per_class:
        by_class = _threshold_per_class(scores, predicted, class_names, alpha, delta)
    decision = Decision(threshold, LabelRule(len(class_names)), by_class)
    if labels is not None:
        accepted = scores < decision.limits()[predicted]
        decision.labels = fit_label_rule(
            log_probabilities[accepted], labels[accepted], per_class, label_alpha, label_sets, max_error, delta
        )
    elif label_alpha is not None or max_error is not None:
        raise InputError("promises about labels need labelled calibration data: give the class of each input")
    return decision


def _threshold_per_class(
    scores: Tensor, predicted: Tensor, class_names: Sequence[str], alpha: float, delta: float | None
) -> MondrianThreshold:
    for index, name in enumerate(class_names):
        try:
            ConformalThreshold(scores[predicted == index], alpha, delta)
        except InputError as error:
            raise InputError(f"inputs predicted as {name!r}: {error}") from None
    return MondrianThreshold(scores, predicted, alpha, delta)
