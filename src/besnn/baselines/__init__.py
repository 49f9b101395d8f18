"""The methods that a BE-SNN is compared with, one per file: a model, its objective and its settings."""

from besnn.baselines.batch_ensemble import BatchEnsembleClassifier, BatchEnsembleConfig, BatchEnsembleObjective
from besnn.baselines.deep_ensemble import DeepEnsemble, DeepEnsembleConfig, DeepEnsembleObjective
from besnn.baselines.duq import DUQ, DUQConfig, DUQObjective
from besnn.baselines.gaussian import GaussianClassifier, GaussianConfig, GaussianObjective
from besnn.baselines.method import EnsembleConfig, MethodConfig, SingleNetwork, SingleNetworkConfig
from besnn.baselines.softmax import SoftmaxClassifier, SoftmaxConfig, SoftmaxObjective

__all__ = [
    "DUQ",
    "BatchEnsembleClassifier",
    "BatchEnsembleConfig",
    "BatchEnsembleObjective",
    "DUQConfig",
    "DUQObjective",
    "DeepEnsemble",
    "DeepEnsembleConfig",
    "DeepEnsembleObjective",
    "EnsembleConfig",
    "GaussianClassifier",
    "GaussianConfig",
    "GaussianObjective",
    "MethodConfig",
    "SingleNetwork",
    "SingleNetworkConfig",
    "SoftmaxClassifier",
    "SoftmaxConfig",
    "SoftmaxObjective",
]
