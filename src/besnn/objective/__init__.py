"""What training minimises: kernel loss, entropy regulariser, gradient penalty, and their sum."""

from besnn.objective.batches import rows_and_labels, sum_over_processes
from besnn.objective.besnn import BESNNObjective, active_terms
from besnn.objective.entropy import grouped_entropy, knn_entropy
from besnn.objective.gradient import TwiceDifferentiable, gradient_penalty
from besnn.objective.kernel import kernel_cross_entropy, log1mexp, summed_kernel
from besnn.objective.regulariser import entropy_regulariser

__all__ = [
    "BESNNObjective",
    "TwiceDifferentiable",
    "active_terms",
    "entropy_regulariser",
    "gradient_penalty",
    "grouped_entropy",
    "kernel_cross_entropy",
    "knn_entropy",
    "log1mexp",
    "rows_and_labels",
    "sum_over_processes",
    "summed_kernel",
]
