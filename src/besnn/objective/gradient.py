"""The two-sided gradient penalty: the kernel must neither ignore the input nor react to it too sharply.

The penalty differentiates a gradient, and torch differentiates a convolution's input gradient with respect to the weight by a
convolution whose kernel is as large as the image: on a GPU that one operation can take as long as the rest of a training step.
Within `TwiceDifferentiable` the gradient is written as a transposed convolution, whose gradient takes the ordinary kernels. The
numbers are the same.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from besnn.checks import check_choice
from besnn.errors import InputError
from besnn.layers.gpu.scale_and_norm import gradients_of_inputs_only, inputs_only
from besnn.objective.kernel import Reduction

_TRANSPOSED: dict[int, Callable[..., Tensor]] = {3: F.conv_transpose1d, 4: F.conv_transpose2d, 5: F.conv_transpose3d}
_CONVOLUTIONS = (torch.conv1d, torch.conv2d, torch.conv3d)


def gradient_penalty(summed_kernel: Tensor, x: Tensor, squared: bool = True, reduction: Reduction = "mean") -> Tensor:
    """Compute (‖∇_x Σ_c exp(−d̄_c(x))‖² − 1)² of each row of `x`, differentiable again in the model's parameters.

    A row's gradient is taken of the sum over all rows. That is the row's own gradient unless rows influence each other, as
    through a BatchNorm in training mode; then their influence is included.

    Args:
        summed_kernel: one value per row of `x`, in the rows' order: `[rows]`, or `[members, batch]` of member-major rows.
        x: what `summed_kernel` was computed from, `[rows, ...]`, requiring gradients.
        squared: whether to use the squared norm, as in the paper, or the norm, as in DUQ's published code.
        reduction: `"mean"` over rows, or `"none"` for the shape of `summed_kernel`.

    >>> x = torch.tensor([[3.0, 4.0]], requires_grad=True)
    >>> gradient_penalty(x.square().sum(1) / 10, x).item()  # the gradient is x / 5, its norm 1
    0.0
    """
    check_choice("reduction", reduction, ("mean", "none"))
    if summed_kernel.numel() != x.shape[0]:
        values = summed_kernel.numel()
        raise InputError(f"summed_kernel has {values} values for {x.shape[0]} rows of x: pass the tiled x, one row per value")
    if not x.requires_grad:
        raise InputError("x does not require gradients: call x.requires_grad_() before the model")
    gradient = None
    if summed_kernel.requires_grad:
        with gradients_of_inputs_only():
            (gradient,) = torch.autograd.grad(summed_kernel.sum(), x, create_graph=True, allow_unused=True)
    if gradient is None:
        raise InputError("summed_kernel was not computed from x: pass the x that the model was given, outside torch.no_grad()")
    gradient = gradient.reshape(x.shape[0], -1)
    norm = gradient.square().sum(1) if squared else torch.linalg.vector_norm(gradient, dim=1)
    penalty = (norm - 1).square()
    return penalty.mean() if reduction == "mean" else penalty.view_as(summed_kernel)


class TwiceDifferentiable(TorchFunctionMode):
    """Within this context, every convolution has a gradient that is fast to differentiate again."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Replace convolutions, and pass everything else on."""
        kwargs = kwargs or {}
        if func not in _CONVOLUTIONS:
            return func(*args, **kwargs)
        return _convolution(func, *args, **kwargs)


def _convolution(
    func: Callable[..., Tensor],
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor:
    if isinstance(padding, str) or input.ndim != weight.ndim:  # "same" may pad unevenly; an unbatched input
        return func(input, weight, bias, stride, padding, dilation, groups)
    if torch.is_autocast_enabled(input.device.type):
        dtype = torch.get_autocast_dtype(input.device.type)
        input, weight = input.to(dtype), weight.to(dtype)
    dimensions = input.ndim - 2
    geometry = tuple((part,) * dimensions if isinstance(part, int) else tuple(part) for part in (stride, padding, dilation))
    y: Tensor = _Convolution.apply(input, weight, func, geometry, groups)  # type: ignore[no-untyped-call]
    return y if bias is None else y + bias.to(y.dtype).reshape(-1, *[1] * dimensions)


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, func: Callable[..., Tensor], geometry: Any, groups: int) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.geometry, ctx.groups = geometry, groups
        stride, padding, dilation = geometry
        return func(x, weight, None, stride, padding, dilation, groups)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        stride, padding, dilation = ctx.geometry
        of_x = of_weight = None
        if ctx.needs_input_grad[0]:
            sizes = zip(gradient.shape[2:], stride, padding, dilation, weight.shape[2:], strict=True)
            covered = [(size - 1) * step - 2 * edge + spread * (kernel - 1) + 1 for size, step, edge, spread, kernel in sizes]
            beyond = [size - reached for size, reached in zip(x.shape[2:], covered, strict=True)]
            of_x = _TRANSPOSED[x.ndim](gradient, weight, None, stride, padding, beyond, ctx.groups, dilation)
        if ctx.needs_input_grad[1] and not inputs_only():
            geometry = stride, padding, dilation, False, [0] * len(stride), ctx.groups
            of_weight = torch.ops.aten.convolution_backward(gradient, x, weight, None, *geometry, (False, True, False))[1]
        return of_x, of_weight, None, None, None
