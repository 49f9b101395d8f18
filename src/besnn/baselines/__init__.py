"""The methods that a BE-SNN is compared with, behind the same protocol, each with its own objective."""

from besnn.baselines.batch_ensemble import BatchEnsembleClassifier, BatchEnsembleObjective
from besnn.baselines.deep_ensemble import DeepEnsemble, DeepEnsembleObjective
from besnn.baselines.duq import DUQ, DUQObjective
from besnn.baselines.gaussian import GaussianClassifier, GaussianObjective
from besnn.baselines.softmax import SoftmaxClassifier, SoftmaxObjective

__all__ = [
    "DUQ",
    "BatchEnsembleClassifier",
    "BatchEnsembleObjective",
    "DUQObjective",
    "DeepEnsemble",
    "DeepEnsembleObjective",
    "GaussianClassifier",
    "GaussianObjective",
    "SoftmaxClassifier",
    "SoftmaxObjective",
]
