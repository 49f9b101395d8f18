"""Distances between features and classes, by the moments of the class features."""

import torch
from torch import Tensor

_DISTANCE_TYPES = (torch.float32, torch.float64)  # that torch.cdist knows


def class_moments(class_features: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and spread of each class's feature samples.

    Args:
        class_features: `[members, classes, samples, d]`.

    Returns:
        μ = mean_m e_m, `[members, classes, d]`, and v = mean_m ‖e_m − μ‖², `[members, classes]`.
    """
    mean = class_features.mean(dim=2)
    spread = (class_features - mean.unsqueeze(2)).square().sum(dim=-1).mean(dim=2)
    return mean, spread


def squared_distances(features: Tensor, mean: Tensor, spread: Tensor) -> Tensor:
    """The average squared distance d̄ from each feature to the samples of each class, exactly and without touching the samples.

    mean_m ‖φ − e_m‖² = ‖φ − μ‖² + v, so the cost does not depend on the number of samples and the value is never negative.

    Args:
        features: `[members, batch, d]`.
        mean: μ, `[members, classes, d]`.
        spread: v, `[members, classes]`.

    Returns:
        `[members, batch, classes]`.

    >>> samples = torch.randn(1, 3, 100, 5)
    >>> features = torch.randn(1, 2, 5)
    >>> by_moments = squared_distances(features, *class_moments(samples))
    >>> by_force = (features[:, :, None, None] - samples[:, None]).square().sum(-1).mean(-1)
    >>> torch.allclose(by_moments, by_force, rtol=1e-4)
    True
    """
    # ‖φ − μ‖² by differences, not by ‖φ‖² + ‖μ‖² − 2φμ: that loses all digits where φ ≈ μ, which is where trained features lie.
    if torch.is_grad_enabled() or torch.compiler.is_compiling() or features.dtype not in _DISTANCE_TYPES:
        differences = features.unsqueeze(2) - mean.unsqueeze(1)
        return differences.square().sum(dim=-1) + spread.unsqueeze(1)
    # The same without a tensor [members, batch, classes, d]; it cannot be differentiated twice, nor exported.
    distances = torch.cdist(features, mean, compute_mode="donot_use_mm_for_euclid_dist")
    return distances.square_() + spread.unsqueeze(1)


def kernel_log_probabilities(distances: Tensor) -> Tensor:
    """The members' mean kernel exp(−d̄), normalised over classes, in log space so that far inputs don't underflow.

    Args:
        distances: `[members, batch, classes]`.

    Returns:
        Log probabilities `[batch, classes]`.

    >>> far = torch.tensor([[[2000.0, 1000.0, 3000.0]]])
    >>> kernel_log_probabilities(far).argmax(dim=-1).tolist()
    [1]
    """
    finite = distances.clamp(max=torch.finfo(distances.dtype).max)  # infinitely far from all classes: all alike, not NaN
    return torch.log_softmax(torch.logsumexp(-finite, dim=0), dim=-1)
