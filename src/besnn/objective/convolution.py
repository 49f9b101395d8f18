"""Convolutions whose gradient is quick to differentiate again, for the gradient penalty.

torch differentiates a convolution's input gradient with respect to the weight by a convolution whose kernel is as large as the
image: on a GPU that one operation can take as long as all the rest of a training step. Written as a transposed convolution,
the same gradient is differentiated by the ordinary kernels. The numbers are the same.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from besnn.layers.gpu.scale_and_norm import inputs_only

_TRANSPOSED: dict[int, Callable[..., Tensor]] = {3: F.conv_transpose1d, 4: F.conv_transpose2d, 5: F.conv_transpose3d}
_CONVOLUTIONS = (torch.conv1d, torch.conv2d, torch.conv3d)


class TwiceDifferentiable(TorchFunctionMode):
    """Within it, every convolution is one whose gradient is quick to differentiate again.

    >>> x, weight = torch.rand(2, 3, 8, 8, requires_grad=True), torch.rand(4, 3, 3, 3, requires_grad=True)
    >>> with TwiceDifferentiable():
    ...     y = F.conv2d(x, weight)
    >>> (gradient,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
    >>> gradient.square().sum().backward()
    >>> list(weight.grad.shape)
    [4, 3, 3, 3]
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Replaces the convolutions that it can, and passes everything else on."""
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
            covered = [
                (size - 1) * step - 2 * border + spread * (kernel - 1) + 1
                for size, step, border, spread, kernel in zip(
                    gradient.shape[2:], stride, padding, dilation, weight.shape[2:], strict=True
                )
            ]
            beyond = [size - reached for size, reached in zip(x.shape[2:], covered, strict=True)]
            of_x = _TRANSPOSED[x.ndim](gradient, weight, None, stride, padding, beyond, ctx.groups, dilation)
        if ctx.needs_input_grad[1] and not inputs_only():
            mask = (False, True, False)
            none = [0] * len(stride)
            of_weight = torch.ops.aten.convolution_backward(
                gradient, x, weight, None, stride, padding, dilation, False, none, ctx.groups, mask
            )[1]
        return of_x, of_weight, None, None, None
