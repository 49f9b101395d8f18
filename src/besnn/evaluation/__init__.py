"""Evaluation of a detector from arrays alone: metrics and intervals here, figures in `plots`, the report in `report`."""

from besnn.detection.conformal import binomial_interval
from besnn.evaluation.classification import (
    accuracy,
    brier_score,
    calibration_bins,
    classification_metrics,
    confusion_matrix,
    expected_calibration_error,
    negative_log_likelihood,
)
from besnn.evaluation.metrics import ood_intervals, ood_metrics, openood_metrics
from besnn.evaluation.result import Evaluation, ScoredSet
from besnn.evaluation.selective import augrc, aurc, label_set_metrics, scod_aurc

__all__ = [
    "Evaluation",
    "ScoredSet",
    "accuracy",
    "augrc",
    "aurc",
    "binomial_interval",
    "brier_score",
    "calibration_bins",
    "classification_metrics",
    "confusion_matrix",
    "expected_calibration_error",
    "label_set_metrics",
    "negative_log_likelihood",
    "ood_intervals",
    "ood_metrics",
    "openood_metrics",
    "scod_aurc",
]
