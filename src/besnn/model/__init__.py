"""The BE-SNN, the protocol that it shares with all other methods, and the paper's backbones."""

from besnn.model.backbones import cifar_resnet18, fashion_convnet, two_moons_mlp
from besnn.model.besnn import BESNN
from besnn.model.distance import class_moments, kernel_log_probabilities, squared_distances
from besnn.model.generator import ClassFeatureGenerator
from besnn.model.protocol import EvidenceKind, Objective, OODClassifier

__all__ = [
    "BESNN",
    "ClassFeatureGenerator",
    "EvidenceKind",
    "OODClassifier",
    "Objective",
    "cifar_resnet18",
    "class_moments",
    "fashion_convnet",
    "kernel_log_probabilities",
    "squared_distances",
    "two_moons_mlp",
]
