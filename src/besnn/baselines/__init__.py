"""The methods that a BE-SNN is compared with, one per file: a model, its objective and its settings."""

from besnn.baselines.batch_ensemble import BatchEnsembleClassifier, BatchEnsembleObjective
from besnn.baselines.deep_ensemble import DeepEnsemble, DeepEnsembleObjective
from besnn.baselines.duq import DUQ, DUQObjective
from besnn.baselines.gaussian import GaussianClassifier, GaussianObjective
from besnn.baselines.method import EnsembleConfig, MethodConfig, SingleNetwork, SingleNetworkConfig
from besnn.baselines.softmax import SoftmaxClassifier, SoftmaxObjective

__all__ = [
    "DUQ",
    "BatchEnsembleClassifier",
    "BatchEnsembleObjective",
    "DUQObjective",
    "DeepEnsemble",
    "DeepEnsembleObjective",
    "EnsembleConfig",
    "GaussianClassifier",
    "GaussianObjective",
    "MethodConfig",
    "SingleNetwork",
    "SingleNetworkConfig",
    "SoftmaxClassifier",
    "SoftmaxObjective",
]
