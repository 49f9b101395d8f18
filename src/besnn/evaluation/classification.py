"""Quality of class predictions and their probabilities, on in-distribution inputs with known labels."""

from dataclasses import dataclass
from typing import Literal, TypedDict

import numpy as np
import numpy.typing as npt
import sklearn.metrics

from besnn.checks import check_same_length
from besnn.errors import InputError
from besnn.evaluation.checks import FloatArray, IntArray, as_labels, as_probabilities

Binning = Literal["width", "mass"]


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
    """Compute accuracy, negative log-likelihood, expected calibration error (15 equal-width bins) and Brier score.

    >>> classification_metrics([0, 1], [[1.0, 0.0], [0.5, 0.5]])["accuracy"]
    0.5
    """
    return ClassificationMetrics(
        accuracy=accuracy(labels, probabilities),
        nll=negative_log_likelihood(labels, probabilities),
        ece=expected_calibration_error(labels, probabilities),
        brier=brier_score(labels, probabilities),
    )


def accuracy(labels: npt.ArrayLike, probabilities: npt.ArrayLike) -> float:
    """Compute the share of inputs whose most probable class is the label; labels ``[n]``, probabilities ``[n, classes]``.

    >>> accuracy([0, 1], [[0.9, 0.1], [0.2, 0.8]])
    1.0
    """
    truth, predicted = _checked(labels, probabilities)
    return float(np.mean(predicted.argmax(axis=1) == truth))


def negative_log_likelihood(labels: npt.ArrayLike, probabilities: npt.ArrayLike) -> float:
    """Compute the mean −log p(label), in nats; a probability below float64's epsilon counts as epsilon, as in scikit-learn.

    >>> round(negative_log_likelihood([0], [[0.5, 0.5]]), 4)
    0.6931
    """
    truth, predicted = _checked(labels, probabilities)
    of_label = predicted[np.arange(truth.size), truth]
    return float(-np.log(np.maximum(of_label, np.finfo(np.float64).eps)).mean())


def brier_score(labels: npt.ArrayLike, probabilities: npt.ArrayLike) -> float:
    """Compute the mean squared distance of the probabilities from the one-hot label, summed over classes: in [0, 2].

    >>> brier_score([0], [[0.5, 0.5]])
    0.5
    """
    truth, predicted = _checked(labels, probabilities)
    errors = predicted - np.eye(predicted.shape[1])[truth]
    return float(np.square(errors).sum(axis=1).mean())


def expected_calibration_error(
    labels: npt.ArrayLike, probabilities: npt.ArrayLike, bins: int = 15, binning: Binning = "width"
) -> float:
    """Compute the expected calibration error (Guo et al. 2017); ``binning="mass"`` uses bins of equal counts.

    >>> round(expected_calibration_error([0, 0], [[0.9, 0.1], [0.9, 0.1]]), 4)
    0.1
    """
    return calibration_bins(labels, probabilities, bins, binning).calibration_error


def calibration_bins(
    labels: npt.ArrayLike, probabilities: npt.ArrayLike, bins: int = 15, binning: Binning = "width"
) -> CalibrationBins:
    """Group inputs by confidence, the probability of the predicted class, into half-open bins (low, high].

    Inputs of equal confidence share a bin, so ``binning="mass"`` may give fewer bins than requested.

    >>> calibration_bins([0, 1], [[0.9, 0.1], [0.6, 0.4]], bins=2).counts
    array([0, 2])
    """
    truth, predicted = _checked(labels, probabilities)
    if bins < 1:
        raise InputError(f"bins={bins}: give at least 1")
    confidence = predicted.max(axis=1)
    grid = np.linspace(0, 1, bins + 1)
    edges = grid if binning == "width" else np.unique([0.0, *np.quantile(confidence, grid[1:-1]), 1.0])
    inner_edges = edges[1:-1]
    bin_of = np.searchsorted(inner_edges, confidence, side="left")
    counts = np.bincount(bin_of, minlength=edges.size - 1)
    hits = np.bincount(bin_of, weights=predicted.argmax(axis=1) == truth, minlength=counts.size)
    confidences = np.bincount(bin_of, weights=confidence, minlength=counts.size)
    occupied = np.where(counts > 0, counts, np.nan)
    return CalibrationBins(edges, counts, confidence=confidences / occupied, accuracy=hits / occupied)


def confusion_matrix(labels: npt.ArrayLike, probabilities: npt.ArrayLike) -> IntArray:
    """Count inputs by label (row) and predicted class (column), ``[classes, classes]``.

    >>> confusion_matrix([0, 1], [[0.9, 0.1], [0.6, 0.4]])
    array([[1, 0],
           [1, 0]])
    """
    truth, predicted = _checked(labels, probabilities)
    classes = np.arange(predicted.shape[1])
    counts: IntArray = sklearn.metrics.confusion_matrix(truth, predicted.argmax(axis=1), labels=classes)
    return counts


def _checked(labels: npt.ArrayLike, probabilities: npt.ArrayLike) -> tuple[IntArray, FloatArray]:
    predicted = as_probabilities(probabilities, "probabilities")
    truth = as_labels(labels, "labels", num_classes=predicted.shape[1])
    check_same_length(labels=truth, probabilities=predicted)
    return truth, predicted
