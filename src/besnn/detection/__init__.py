"""From evidence to scores to calibrated decisions. A higher score always means more out-of-distribution."""

from besnn.detection.combined import CombinedScore
from besnn.detection.conformal import ConformalThreshold, MondrianThreshold, benjamini_hochberg, p_values
from besnn.detection.densities import DENSITIES, ClassGaussianDensity, Density, NearestNeighbourDensity
from besnn.detection.drift import DriftMonitor, DriftStatus
from besnn.detection.score_set import ScoreSet
from besnn.detection.scores import (
    SCORES,
    Score,
    energy,
    generalised_entropy,
    kernel_confidence,
    logit_mutual_information,
    max_logit,
    max_softmax_probability,
    mutual_information,
    negative_log_likelihood,
    predictive_entropy,
    scores_for,
    smallest_distance,
    softmax_entropy,
    tempered_entropy,
)

__all__ = [
    "DENSITIES",
    "SCORES",
    "ClassGaussianDensity",
    "CombinedScore",
    "ConformalThreshold",
    "Density",
    "DriftMonitor",
    "DriftStatus",
    "MondrianThreshold",
    "NearestNeighbourDensity",
    "Score",
    "ScoreSet",
    "benjamini_hochberg",
    "energy",
    "generalised_entropy",
    "kernel_confidence",
    "logit_mutual_information",
    "max_logit",
    "max_softmax_probability",
    "mutual_information",
    "negative_log_likelihood",
    "p_values",
    "predictive_entropy",
    "scores_for",
    "smallest_distance",
    "softmax_entropy",
    "tempered_entropy",
]
