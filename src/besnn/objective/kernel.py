"""The classification loss: binary cross-entropy of the kernel values exp(−d̄) against the one-hot label."""

import math
from typing import Literal

import torch
from torch import Tensor

from besnn.checks import check_choice, check_distances, check_labels
from besnn.errors import InputError

OverClasses = Literal["sum", "mean"]
Reduction = Literal["mean", "none"]


def log1mexp(d: Tensor) -> Tensor:
    """Compute log(1 − exp(−d)) for d ≥ 0, to full relative accuracy.

    Value and gradient are finite for every d in [0, ∞]: at d = 0 the value is that at the dtype's smallest normal number, and
    the gradient is 0.

    >>> log1mexp(torch.tensor([1e-30, math.log(2.0)]))
    tensor([-69.0776,  -0.6931])
    """
    # Mächler's rule: expm1 is exact for small d and log1p for large d. Each branch sees d clamped to its own side, because the
    # gradient of the branch that torch.where drops must be finite too.
    turn = math.log(2.0)
    near = torch.log(-torch.expm1(-d.clamp(torch.finfo(d.dtype).tiny, turn)))
    far = torch.log1p(-torch.exp(-d.clamp(min=turn)))
    return torch.where(d < turn, near, far)


def kernel_cross_entropy(
    distances: Tensor,
    labels: Tensor,
    over_classes: OverClasses = "sum",
    reduction: Reduction = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """Compute d̄_y − Σ_{c≠y} log(1 − exp(−d̄_c)): the paper's classification loss, from distances rather than kernel values.

    With smoothing ε the target is not the one-hot t but (1 − ε) t + ε / C, as in softmax networks.

    Args:
        distances: d̄, `[members, batch, classes]`, not negative.
        labels: y, integers `[batch]`, or `[members, batch]` for members with inputs of their own.
        over_classes: `"sum"` as in the paper, or `"mean"` as in DUQ's published code.
        reduction: `"mean"` over members and batch, or `"none"` for `[members, batch]`.
        label_smoothing: ε, the share of a label's weight that is spread evenly over all classes; in [0, 1).

    >>> distances = torch.tensor([[[0.1, 5.0], [0.1, 5.0]]])
    >>> [[right, wrong]] = kernel_cross_entropy(distances, torch.tensor([0, 1]), reduction="none").tolist()
    >>> f"{right:.2f} {wrong:.2f}"
    '0.11 7.35'
    """
    check_distances(distances)
    check_labels(labels, num_classes=distances.shape[-1], batch=distances.shape[1], members=distances.shape[0])
    check_choice("over_classes", over_classes, ("sum", "mean"))
    check_choice("reduction", reduction, ("mean", "none"))
    if not 0 <= label_smoothing < 1:
        raise InputError(f"label_smoothing={label_smoothing} is not in [0, 1): use 0 for none")
    classes = distances.shape[-1]
    is_label = labels[..., None] == torch.arange(classes, device=labels.device)
    by_class = torch.where(is_label, distances, -log1mexp(distances))
    if label_smoothing:
        opposite = torch.where(is_label, -log1mexp(distances), distances)
        off = torch.where(is_label, label_smoothing * (1 - 1 / classes), label_smoothing / classes)
        by_class = torch.lerp(by_class, opposite, off.to(distances.dtype))
    loss = by_class.sum(-1) if over_classes == "sum" else by_class.mean(-1)
    return loss.mean() if reduction == "mean" else loss


def summed_kernel(distances: Tensor) -> Tensor:
    """Compute Σ_c exp(−d̄_c), `[members, batch]`, whose input gradient the gradient penalty keeps at norm 1.

    >>> summed_kernel(torch.tensor([[[0.0, 1.0], [9.0, 9.0]]]))
    tensor([[1.3679e+00, 2.4682e-04]])
    """
    return torch.exp(-distances).sum(-1)
