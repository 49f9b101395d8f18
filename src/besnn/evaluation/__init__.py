"""Evaluation of a detector from arrays alone: metrics and intervals here, figures in `plots`, the report in `report`."""

from besnn.evaluation.classification import calibration_bins, classification_metrics, confusion_matrix
from besnn.evaluation.intervals import Interval, binomial_interval, ood_intervals
from besnn.evaluation.metrics import OODMetrics, ood_metrics
from besnn.evaluation.result import Evaluation, ScoredSet

__all__ = [
    "Evaluation",
    "Interval",
    "OODMetrics",
    "ScoredSet",
    "binomial_interval",
    "calibration_bins",
    "classification_metrics",
    "confusion_matrix",
    "ood_intervals",
    "ood_metrics",
]
