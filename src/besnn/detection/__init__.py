"""From evidence to scores to calibrated decisions. A higher score always means more out-of-distribution."""

from besnn.detection.combined import CombinedScore
from besnn.detection.conformal import ConformalThreshold, MondrianThreshold, benjamini_hochberg, p_values
from besnn.detection.conformal_variants import cross_conformal_p_values, weighted_p_values
from besnn.detection.decision import Decision, fit_decision
from besnn.detection.densities import DENSITIES, ClassGaussianDensity, Density, NearestNeighbourDensity
from besnn.detection.drift import DriftMonitor, DriftStatus
from besnn.detection.label_rule import LabelRule
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
    "Decision",
    "Density",
    "DriftMonitor",
    "DriftStatus",
    "LabelRule",
    "MondrianThreshold",
    "NearestNeighbourDensity",
    "Score",
    "ScoreSet",
    "benjamini_hochberg",
    "cross_conformal_p_values",
    "energy",
    "fit_decision",
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
    "weighted_p_values",
]
