"""Check scores, labels and probabilities, given as lists, arrays or tensors on any device."""

import numpy as np
import numpy.typing as npt

from besnn.checks import as_numpy
from besnn.errors import InputError

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

_ROW_SUM_TOLERANCE = 1e-3  # probabilities may come from bfloat16 or a text file


def as_scores(values: npt.ArrayLike, name: str) -> FloatArray:
    """Return OOD scores as float64 ``[n]``, n ≥ 1; infinite ones have an order and are allowed, NaN is not."""
    scores = _as_float(values, name)
    if scores.ndim != 1:
        raise InputError(f"{name} has shape {list(scores.shape)}: give one score per input, shape [n]")
    if scores.size == 0:
        raise InputError(f"{name} is empty: give at least one score")
    missing = np.flatnonzero(np.isnan(scores))
    if missing.size:
        raise InputError(f"{name} has {missing.size} NaN, the first at index {missing[0]}: drop the inputs without a score")
    return scores


def as_labels(values: npt.ArrayLike, name: str, num_classes: int) -> IntArray:
    """Return class indices as int64 ``[n]``, n ≥ 1, each in [0, num_classes)."""
    labels = as_numpy(values, name)
    if labels.ndim != 1 or labels.size == 0:
        raise InputError(f"{name} has shape {list(labels.shape)}: give one class index per input, shape [n], n ≥ 1")
    if not np.issubdtype(labels.dtype, np.integer):
        raise InputError(f"{name} has dtype {labels.dtype}: give integer class indices")
    outside = labels[(labels < 0) | (labels >= num_classes)]
    if outside.size:
        raise InputError(f"{name} has class {outside[0]}, outside [0, {num_classes}): map classes to indices first")
    return labels.astype(np.int64)


def as_probabilities(values: npt.ArrayLike, name: str) -> FloatArray:
    """Return class probabilities as float64 ``[n, classes]``, n ≥ 1: in [0, 1], each row summing to 1."""
    probabilities = _as_float(values, name)
    if probabilities.ndim != 2 or probabilities.size == 0:
        raise InputError(f"{name} has shape {list(probabilities.shape)}: give [n, classes], n ≥ 1")
    row_sums = probabilities.sum(axis=1)
    wrong = np.flatnonzero(~((np.abs(row_sums - 1) <= _ROW_SUM_TOLERANCE) & (probabilities >= 0).all(axis=1)))
    if wrong.size:
        total = f"{row_sums[wrong[0]]:.4g}"
        raise InputError(f"{name} row {wrong[0]} is not a distribution (sum {total}): normalise over classes, as by a softmax")
    return probabilities


def _as_float(values: npt.ArrayLike, name: str) -> FloatArray:
    array = as_numpy(values, name)
    try:
        return array.astype(np.float64)
    except (TypeError, ValueError):
        raise InputError(f"{name} has dtype {array.dtype}: give numbers") from None
