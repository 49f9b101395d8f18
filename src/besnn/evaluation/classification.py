"""Quality of class predictions and their probabilities, on in-distribution inputs with known labels."""

from dataclasses import dataclass
from typing import TypedDict

import numpy as np
import numpy.typing as npt

from besnn.checks import check_same_length
from besnn.errors import InputError
from besnn.evaluation.checks import FloatArray, IntArray, as_labels, as_probabilities


class ClassificationMetrics(TypedDict):
    """The figures of one labelled set."""

    accuracy: float
    nll: float
    ece: float
    brier: float


@dataclass(frozen=True, eq=False)
class CalibrationBins:
    """Confidence against accuracy, bin by bin: edges ``[bins + 1]``, the others ``[bins]``, NaN where a bin is empty."""

    edges: FloatArray
    counts: IntArray
    confidence: FloatArray
    accuracy: FloatArray

    @property
    def calibration_error(self) -> float:
        """Mean |accuracy − confidence|, weighted by the inputs in each bin."""
        gaps = np.abs(self.accuracy - self.confidence)
        return float(np.nansum(self.counts * gaps) / self.counts.sum())


def classification_metrics(labels: npt.ArrayLike, probabilities: npt.ArrayLike) -> ClassificationMetrics:
    """Compute the figures of labels ``[n]`` and probabilities ``[n, classes]``.

    - ``nll``: mean −log p(label), in nats; a probability below float64's epsilon counts as epsilon, as in scikit-learn.
    - ``ece``: expected calibration error (Guo et al. 2017), with 15 bins of equal width.
    - ``brier``: mean squared distance of the probabilities from the one-hot label, summed over classes: in [0, 2].

    >>> classification_metrics([0, 1], [[1.0, 0.0], [0.5, 0.5]])["accuracy"]
    0.5
    """
    truth, predicted = _checked(labels, probabilities)
    of_label = predicted[np.arange(truth.size), truth]
    errors = predicted - np.eye(predicted.shape[1])[truth]
    return ClassificationMetrics(
        accuracy=float(np.mean(predicted.argmax(axis=1) == truth)),
        nll=float(-np.log(np.maximum(of_label, np.finfo(np.float64).eps)).mean()),
        ece=calibration_bins(truth, predicted).calibration_error,
        brier=float(np.square(errors).sum(axis=1).mean()),
    )


def accuracy(labels: npt.ArrayLike, probabilities: npt.ArrayLike) -> float:
    """Return the share of inputs whose most probable class is the label.

    >>> accuracy([0, 1], [[1.0, 0.0], [0.5, 0.5]])
    0.5
    """
    return classification_metrics(labels, probabilities)["accuracy"]


def negative_log_likelihood(labels: npt.ArrayLike, probabilities: npt.ArrayLike) -> float:
    """Return the mean −log p(label), in nats.

    >>> round(negative_log_likelihood([0, 1], [[1.0, 0.0], [0.5, 0.5]]), 4)
    0.3466
    """
    return classification_metrics(labels, probabilities)["nll"]


def expected_calibration_error(labels: npt.ArrayLike, probabilities: npt.ArrayLike) -> float:
    """Return the expected calibration error, with 15 bins of equal width.

    >>> expected_calibration_error([0, 1], [[1.0, 0.0], [0.5, 0.5]])
    0.25
    """
    return classification_metrics(labels, probabilities)["ece"]


def brier_score(labels: npt.ArrayLike, probabilities: npt.ArrayLike) -> float:
    """Return the Brier score, summed over classes: in [0, 2].

    >>> brier_score([0, 1], [[1.0, 0.0], [0.5, 0.5]])
    0.25
    """
    return classification_metrics(labels, probabilities)["brier"]


def calibration_bins(labels: npt.ArrayLike, probabilities: npt.ArrayLike, bins: int = 15) -> CalibrationBins:
    """Group inputs by confidence, the probability of the predicted class, into bins (low, high] of equal width.

    >>> calibration_bins([0, 1], [[0.9, 0.1], [0.6, 0.4]], bins=2).counts
    array([0, 2])
    """
    truth, predicted = _checked(labels, probabilities)
    if bins < 1:
        raise InputError(f"bins={bins}: give at least 1")
    confidence = predicted.max(axis=1)
    edges = np.linspace(0, 1, bins + 1)
    bin_of = np.searchsorted(edges[1:-1], confidence, side="left")
    counts = np.bincount(bin_of, minlength=bins)
    hits = np.bincount(bin_of, weights=predicted.argmax(axis=1) == truth, minlength=bins)
    confidences = np.bincount(bin_of, weights=confidence, minlength=bins)
    occupied = np.where(counts > 0, counts, np.nan)
    return CalibrationBins(edges, counts, confidence=confidences / occupied, accuracy=hits / occupied)


def confusion_matrix(labels: npt.ArrayLike, probabilities: npt.ArrayLike) -> IntArray:
    """Count inputs by label (row) and predicted class (column), ``[classes, classes]``.

    >>> confusion_matrix([0, 1], [[0.9, 0.1], [0.6, 0.4]])
    array([[1, 0],
           [1, 0]])
    """
    truth, predicted = _checked(labels, probabilities)
    counts = np.zeros((predicted.shape[1],) * 2, np.int64)
    np.add.at(counts, (truth, predicted.argmax(axis=1)), 1)
    return counts


def _checked(labels: npt.ArrayLike, probabilities: npt.ArrayLike) -> tuple[IntArray, FloatArray]:
    predicted = as_probabilities(probabilities, "probabilities")
    truth = as_labels(labels, "labels", num_classes=predicted.shape[1])
    check_same_length(labels=truth, probabilities=predicted)
    return truth, predicted
