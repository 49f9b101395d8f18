"""The loss of a BE-SNN: kernel loss, entropy regulariser, gradient penalty, and their sum."""

from besnn.objective.besnn import BESNNObjective, active_terms, entropy_regulariser
from besnn.objective.entropy import knn_entropy
from besnn.objective.gradient import gradient_penalty
from besnn.objective.kernel import kernel_cross_entropy, log1mexp, summed_kernel

__all__ = [
    "BESNNObjective",
    "active_terms",
    "entropy_regulariser",
    "gradient_penalty",
    "kernel_cross_entropy",
    "knn_entropy",
    "log1mexp",
    "summed_kernel",
]
