"""Answering only what is sure: how the error falls as fewer inputs are answered, and what label sets hold."""

from collections.abc import Mapping
from typing import TypedDict

import numpy as np
import numpy.typing as npt

from besnn.checks import check_same_length
from besnn.evaluation.checks import FloatArray, IntArray, as_labels, as_scores
from besnn.evaluation.metrics import ood_metrics

UNKNOWN_SHARE = 0.5
"""The share of unknown inputs that SCOD-AURC assumes, whatever the sizes of the sets."""


class LabelSetMetrics(TypedDict):
    """Label sets of known inputs that were accepted."""

    coverage: float  # the share of sets that hold the true class
    mean_size: float
    accepted: int


class LabelMetrics(TypedDict):
    """How good the labels of accepted known inputs are, and what was promised; None where nothing was."""

    ece_unscaled: float
    temperature: float
    sets: LabelSetMetrics
    alpha: float | None
    error_of_known: float
    max_error: float | None


class SelectiveMetrics(TypedDict):
    """One order of answering."""

    aurc: float
    augrc: float
    scod_aurc: dict[str, float]  # by unknown set


def aurc(confidence: npt.ArrayLike, wrong: npt.ArrayLike, weights: npt.ArrayLike | None = None) -> float:
    """Compute the area under the risk-coverage curve: the mean, over inputs, of the error among inputs at least as confident.

    (Geifman et al. 2019.) `confidence`, `wrong` and `weights` are `[n]`. Inputs that tie are answered together.

    >>> round(aurc([0.9, 0.8, 0.7], [False, True, False]), 4)
    0.2778
    """
    sure, errors = as_scores(confidence, "confidence"), as_scores(wrong, "wrong")
    shares = np.ones_like(sure) if weights is None else as_scores(weights, "weights")
    check_same_length(confidence=sure, wrong=errors, weights=shares)
    ranks = np.unique(-sure, return_inverse=True)[1]
    own = np.bincount(ranks, shares)
    risk = np.cumsum(np.bincount(ranks, shares * errors)) / np.cumsum(own)
    return float((own * risk).sum() / own.sum())


def augrc(confidence: npt.ArrayLike, wrong: npt.ArrayLike) -> float:
    """Compute the area under the generalised risk-coverage curve (Traub et al. 2024), in [0, 0.5].

    The generalised risk is the share of all inputs that are answered wrongly, so errors at a low coverage do not count more.
    With e the share of errors and A the AUROC of confidence for right against wrong labels, it is (1 − A) e (1 − e) + e² / 2.

    >>> round(augrc([0.9, 0.8, 0.7], [False, True, False]), 4)
    0.1667
    """
    sure, errors = as_scores(confidence, "confidence"), as_scores(wrong, "wrong") != 0
    check_same_length(confidence=sure, wrong=errors)
    share = float(errors.mean())
    if share in (0, 1):
        return share / 2
    mixed = ood_metrics(-sure[~errors], -sure[errors])["auroc"]
    return (1 - mixed) * share * (1 - share) + share**2 / 2


def scod_aurc(confidence: npt.ArrayLike, wrong: npt.ArrayLike, unknown_confidence: npt.ArrayLike) -> float:
    """Compute `aurc` of known inputs `[n]` and unknown inputs `[m]` together, where every answer to an unknown input is wrong.

    (Selective classification with out-of-distribution data, Xia & Bouganis 2022.) Unknown inputs weigh `UNKNOWN_SHARE` in all.

    >>> round(scod_aurc([0.9, 0.8], [False, False], unknown_confidence=[0.1, 0.2]), 4)
    0.2083
    """
    known, unknown = as_scores(confidence, "confidence"), as_scores(unknown_confidence, "unknown_confidence")
    weights = np.repeat([(1 - UNKNOWN_SHARE) / known.size, UNKNOWN_SHARE / unknown.size], [known.size, unknown.size])
    errors = np.concatenate([as_scores(wrong, "wrong"), np.ones(unknown.size)])
    return aurc(np.concatenate([known, unknown]), errors, weights)


def selective_metrics(
    confidence: FloatArray, wrong: npt.NDArray[np.bool_], unknown_confidence: Mapping[str, FloatArray]
) -> SelectiveMetrics:
    """Compute all areas for one order of answering; the unknown inputs' confidence is by the name of their set."""
    scod = {name: scod_aurc(confidence, wrong, each) for name, each in unknown_confidence.items()}
    return SelectiveMetrics(aurc=aurc(confidence, wrong), augrc=augrc(confidence, wrong), scod_aurc=scod)


def decision_confidence(probabilities: FloatArray, p_values: FloatArray, alpha: float) -> FloatArray:
    """Return the confidence by which a detector decides: the probability of its label, times p / α where p < α."""
    confidence: FloatArray = probabilities.max(axis=1) * np.minimum(1, p_values / alpha)
    return confidence


def label_set_metrics(
    label_sets: npt.NDArray[np.bool_], labels: npt.ArrayLike, accepted: npt.NDArray[np.bool_]
) -> LabelSetMetrics:
    """Compute coverage and mean size of label sets `[n, classes]`, over the accepted inputs.

    >>> sets = np.array([[True, False], [True, True], [False, False]])
    >>> label_set_metrics(sets, [1, 0, 1], np.array([True, True, False]))
    {'coverage': 0.5, 'mean_size': 1.5, 'accepted': 2}
    """
    truth: IntArray = as_labels(labels, "labels", label_sets.shape[1])
    count = int(accepted.sum())
    held = label_sets[np.arange(truth.size), truth][accepted]
    sizes = label_sets.sum(axis=1)[accepted]
    return LabelSetMetrics(
        coverage=float(held.mean()) if count else 1.0, mean_size=float(sizes.mean()) if count else 0.0, accepted=count
    )
