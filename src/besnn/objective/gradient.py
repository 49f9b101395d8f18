"""The two-sided gradient penalty: the kernel must neither ignore the input nor react to it too sharply."""

import torch
from torch import Tensor

from besnn.errors import InputError
from besnn.layers.gpu.scale_and_norm import gradients_of_inputs_only
from besnn.objective.choices import check_choice
from besnn.objective.kernel import Reduction


def gradient_penalty(summed_kernel: Tensor, x: Tensor, squared: bool = True, reduction: Reduction = "mean") -> Tensor:
    """(‖∇_x Σ_c exp(−d̄_c(x))‖² − 1)² of each row of `x`, differentiable again in the model's parameters.

    A row's gradient is taken of the sum over all rows. That is the row's own gradient unless rows influence each other, as
    through a BatchNorm in training mode; their part is then included.

    Args:
        summed_kernel: one value a row of `x`, in the rows' order: `[rows]`, or `[members, batch]` of member-major rows.
        x: what `summed_kernel` was computed from, `[rows, ...]`, requiring gradients.
        squared: the squared norm, as the paper writes it; False takes the norm, as DUQ's published code does.
        reduction: `"mean"` over rows, or `"none"`.

    Returns:
        A scalar, or the shape of `summed_kernel` with `reduction="none"`.

    >>> x = torch.tensor([[3.0, 4.0]], requires_grad=True)
    >>> gradient_penalty(x.square().sum(1) / 10, x).item()  # the gradient is x / 5, its norm 1
    0.0
    """
    check_choice("reduction", reduction, ("mean", "none"))
    if summed_kernel.numel() != x.shape[0]:
        raise InputError(
            f"summed_kernel has {summed_kernel.numel()} values for {x.shape[0]} rows of x: pass the tiled x, one row a value"
        )
    if not x.requires_grad:
        raise InputError("x does not require gradients: call x.requires_grad_() before the model")
    gradient = _row_gradients(summed_kernel, x).reshape(x.shape[0], -1)
    norm = gradient.square().sum(1) if squared else torch.linalg.vector_norm(gradient, dim=1)
    penalty = (norm - 1).square()
    return penalty.mean() if reduction == "mean" else penalty.view_as(summed_kernel)


def _row_gradients(summed_kernel: Tensor, x: Tensor) -> Tensor:
    gradient = None
    if summed_kernel.requires_grad:
        with gradients_of_inputs_only():
            (gradient,) = torch.autograd.grad(summed_kernel.sum(), x, create_graph=True, allow_unused=True)
    if gradient is None:
        raise InputError(
            "summed_kernel was not computed from x: give the model the very x that is passed here, outside torch.no_grad()"
        )
    return gradient
