"""Judging a detector, on arrays alone: metrics, intervals, pictures, the report and the tables.

Pictures, report and tables are in `besnn.evaluation.plots`, `besnn.evaluation.report` and `experiments.rendering`.
"""

from besnn.evaluation.bootstrap import bootstrap_interval, ood_intervals
from besnn.evaluation.classification import (
    accuracy,
    brier_score,
    calibration_bins,
    classification_metrics,
    confusion_matrix,
    expected_calibration_error,
    negative_log_likelihood,
)
from besnn.evaluation.intervals import Interval, binomial_interval
from besnn.evaluation.metrics import OODMetrics, ood_metrics
from besnn.evaluation.result import Evaluation
from besnn.evaluation.scored import ScoredSet

__all__ = [
    "Evaluation",
    "Interval",
    "OODMetrics",
    "ScoredSet",
    "accuracy",
    "binomial_interval",
    "bootstrap_interval",
    "brier_score",
    "calibration_bins",
    "classification_metrics",
    "confusion_matrix",
    "expected_calibration_error",
    "negative_log_likelihood",
    "ood_intervals",
    "ood_metrics",
]
