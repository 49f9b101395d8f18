"""Class metrics against scikit-learn, torchmetrics and plain loops."""

import numpy as np
import pytest
import sklearn.metrics
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torchmetrics.classification import MulticlassCalibrationError

from besnn.errors import InputError
from besnn.evaluation import (
    accuracy,
    brier_score,
    calibration_bins,
    classification_metrics,
    confusion_matrix,
    expected_calibration_error,
    negative_log_likelihood,
)
from besnn.evaluation.checks import FloatArray, IntArray


def predictions(seed: int, n: int = 400, classes: int = 5) -> tuple[IntArray, FloatArray]:
    generator = np.random.default_rng(seed)
    return generator.integers(0, classes, n), generator.dirichlet(np.full(classes, 0.4), n)


def test_against_sklearn() -> None:
    labels, probabilities = predictions(0)
    figures = classification_metrics(labels, probabilities)
    predicted = probabilities.argmax(axis=1)
    assert figures["accuracy"] == sklearn.metrics.accuracy_score(labels, predicted)
    assert figures["nll"] == pytest.approx(sklearn.metrics.log_loss(labels, probabilities, labels=range(5)))
    np.testing.assert_array_equal(confusion_matrix(labels, probabilities), sklearn.metrics.confusion_matrix(labels, predicted))
    assert {type(value) for value in figures.values()} == {float}
    alone = [accuracy, negative_log_likelihood, expected_calibration_error, brier_score]
    assert [figure(labels, probabilities) for figure in alone] == list(figures.values())


def test_calibration_error_against_torchmetrics() -> None:
    labels, probabilities = predictions(1)
    oracle = MulticlassCalibrationError(num_classes=5, n_bins=15, norm="l1")
    expected = oracle(torch.from_numpy(probabilities), torch.from_numpy(labels)).item()
    assert classification_metrics(labels, probabilities)["ece"] == pytest.approx(expected, abs=1e-6)


def test_brier_score_against_a_loop() -> None:
    labels, probabilities = predictions(2, n=30)
    total = sum((probabilities[row, column] - (labels[row] == column)) ** 2 for row in range(30) for column in range(5))
    assert classification_metrics(labels, probabilities)["brier"] == pytest.approx(total / 30)


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 2**32 - 1), st.integers(1, 20))
def test_bins_partition_the_inputs(seed: int, bins: int) -> None:
    labels, probabilities = predictions(seed, n=50)
    probabilities = np.round(probabilities, 1)  # many ties, and confidences on the edges
    probabilities /= probabilities.sum(axis=1, keepdims=True)
    result = calibration_bins(labels, probabilities, bins)
    confidence, hits = probabilities.max(axis=1), probabilities.argmax(axis=1) == labels
    assert result.edges[0] == 0
    assert result.edges[-1] == 1
    for index, (low, high) in enumerate(zip(result.edges, result.edges[1:], strict=False)):
        inside = (confidence > low) & (confidence <= high)
        assert result.counts[index] == inside.sum()
        if inside.any():
            assert result.confidence[index] == pytest.approx(confidence[inside].mean())
            assert result.accuracy[index] == pytest.approx(hits[inside].mean())
    assert result.counts.sum() == 50
    assert 0 <= result.calibration_error <= 1


def test_impossible_labels_cost_a_finite_price() -> None:
    assert classification_metrics([1], [[1.0, 0.0]])["nll"] == pytest.approx(-np.log(np.finfo(np.float64).eps))


@pytest.mark.parametrize(
    ("labels", "probabilities", "words"),
    [
        ([2], [[0.5, 0.5]], r"class 2, outside \[0, 2\)"),
        ([-1], [[0.5, 0.5]], "class -1"),
        ([0.0], [[0.5, 0.5]], "dtype float64"),
        ([[0]], [[0.5, 0.5]], r"labels has shape \[1, 1\]"),
        ([0, 1], [[0.5, 0.5]], "labels 2, probabilities 1"),
        ([0], [0.5], r"probabilities has shape \[1\]"),
        ([0], [[0.5, 0.6]], "row 0 is not a distribution"),
        ([0], [[1.5, -0.5]], "row 0 is not a distribution"),
        ([0], [[np.nan, 1.0]], "row 0 is not a distribution"),
    ],
)
def test_wrong_input_is_named(labels: list[int], probabilities: list[list[float]], words: str) -> None:
    with pytest.raises(InputError, match=words):
        classification_metrics(labels, probabilities)


def test_no_bins_is_an_error() -> None:
    with pytest.raises(InputError, match="bins=0"):
        calibration_bins([0], [[1.0]], bins=0)
