"""From evidence to scores to calibrated decisions. Always: a higher score is more out-of-distribution."""

from besnn.detection.combined import CombinedScore
from besnn.detection.conformal import ConformalThreshold
from besnn.detection.density import DENSITIES, Density
from besnn.detection.gaussians import ClassGaussianDensity
from besnn.detection.mondrian import MondrianThreshold
from besnn.detection.monitor import DriftMonitor, DriftStatus
from besnn.detection.neighbours import NearestNeighbourDensity
from besnn.detection.scores import (
    Score,
    energy,
    kernel_confidence,
    logit_mutual_information,
    max_softmax_probability,
    mutual_information,
    negative_log_likelihood,
    predictive_entropy,
    scores_for,
    smallest_distance,
    softmax_entropy,
    tempered_entropy,
)
from besnn.detection.selection import benjamini_hochberg

__all__ = [
    "DENSITIES",
    "ClassGaussianDensity",
    "CombinedScore",
    "ConformalThreshold",
    "Density",
    "DriftMonitor",
    "DriftStatus",
    "MondrianThreshold",
    "NearestNeighbourDensity",
    "Score",
    "benjamini_hochberg",
    "energy",
    "kernel_confidence",
    "logit_mutual_information",
    "max_softmax_probability",
    "mutual_information",
    "negative_log_likelihood",
    "predictive_entropy",
    "scores_for",
    "smallest_distance",
    "softmax_entropy",
    "tempered_entropy",
]
