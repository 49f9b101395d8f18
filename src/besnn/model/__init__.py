"""The BE-SNN, the protocol that it shares with all other methods, and the paper's backbones."""

from besnn.model.backbones import BACKBONES, Backbone, cifar_resnet18, convnet, fashion_convnet, mlp, two_moons_mlp
from besnn.model.besnn import BESNN
from besnn.model.class_features import ClassFeatureGenerator, class_moments, squared_distances
from besnn.model.inference import InferenceNetwork
from besnn.model.preprocessing import Preprocessing
from besnn.model.protocol import EvidenceKind, Objective, OODClassifier, kernel_log_probabilities
from besnn.model.wrapped import WrappedNetwork

__all__ = [
    "BACKBONES",
    "BESNN",
    "Backbone",
    "ClassFeatureGenerator",
    "EvidenceKind",
    "InferenceNetwork",
    "OODClassifier",
    "Objective",
    "Preprocessing",
    "WrappedNetwork",
    "cifar_resnet18",
    "class_moments",
    "convnet",
    "fashion_convnet",
    "kernel_log_probabilities",
    "mlp",
    "squared_distances",
    "two_moons_mlp",
]
