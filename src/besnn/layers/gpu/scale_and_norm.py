"""Scales and BatchNorms of feature maps on a GPU, and their gradients, in as few passes over memory as possible.

A map is `[members · batch, channels, ...]`, and all numbers of a member's channel are multiplied, shifted and summed alike.
torch runs this, its gradient and above all its gradient's gradient as dozens of passes over the map. Here each is one pass that
sums (`sums`, `moments`) and one that writes (`combine`); the rest is arithmetic on `[members, channels]`. Layers use this on a
GPU only.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.autograd.function import once_differentiable
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

_inputs_only: ContextVar[bool] = ContextVar("inputs_only", default=False)


@contextmanager
def gradients_of_inputs_only() -> Iterator[None]:
    """Leave out the gradients of weights within this context, in the convolutions and scales of this package.

    torch cannot tell a function written in Python that its weights' gradients are not needed. It differentiates what ran on a
    GPU in threads of its own, which do not see the caller's context: that is switched off here.
    """
    token = _inputs_only.set(True)
    try:
        with torch.autograd.set_multithreading_enabled(False):
            yield
    finally:
        _inputs_only.reset(token)


def inputs_only() -> bool:
    """Return whether the gradients of weights are to be left out."""
    return _inputs_only.get()


def use_kernels(x: Tensor) -> bool:
    """Return whether a tensor is a map on a GPU that is about to be differentiated as training does it.

    Tracers, compilers and torch's function transforms see torch's own operations, which they can look into.
    """
    if not (x.is_cuda and x.ndim > 2 and x.numel() > 0 and x.is_floating_point() and torch.is_grad_enabled()):
        return False
    traced = (
        torch.compiler.is_compiling()
        or torch.jit.is_tracing()  # type: ignore[attr-defined,no-untyped-call]  # torch's stubs miss it
        or is_in_torch_dispatch_mode()
        or torch._C._are_functorch_transforms_active()
        or forward_ad._current_level >= 0
    )
    return not traced and _kernels().available(x.device)


def _kernels() -> ModuleType:
    """Import the kernels where there is a GPU: Triton takes longer to import than all the rest."""
    from besnn.layers.gpu import kernels

    return kernels


def scale_shift(x: Tensor, scale: Tensor, shift: Tensor | None = None) -> Tensor:
    """Compute `x · scale + shift` with `[members, channels]` each, differentiable any number of times."""
    scaled: Tensor = _ScaleShift.apply(x, scale, shift)  # type: ignore[no-untyped-call]
    return scaled


def normalise(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """Apply BatchNorm to each member of `[members · batch, channels, ...]` by its own batch, twice differentiable.

    Return the map, and each channel's mean and (biased) variance; they, the weight and the bias are `[members, channels]`.
    """
    y: Tensor
    y, mean, variance = _Normalise.apply(x, weight, bias, eps)  # type: ignore[no-untyped-call]
    return y, mean, variance


class _ScaleShift(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Tensor, shift: Tensor | None) -> Tensor:
        ctx.save_for_backward(x if ctx.needs_input_grad[1] else None, scale)
        return _kernels().combine([(x, scale)], shift)  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        x, scale = ctx.saved_tensors
        wanted = ctx.needs_input_grad
        of_scale = of_shift = None
        if any(wanted[1:]) and not inputs_only():
            other = gradient if x is None else x  # any map will do where the scale's gradient is not needed
            of_shift, of_scale = _Sums.apply(gradient, other, len(scale))  # type: ignore[no-untyped-call]
        of_x = scale_shift(gradient, scale) if wanted[0] else None
        return of_x, of_scale if wanted[1] else None, of_shift if wanted[2] else None


class _Sums(torch.autograd.Function):
    """Σ g and Σ g · x over each member's channel: the gradients of `scale_shift`, as `scale_shift` is of these."""

    @staticmethod
    def forward(ctx: Any, g: Tensor, x: Tensor, members: int) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(g, x)
        total, product = _kernels().sums(g, x, members)
        return total, product

    @staticmethod
    def backward(ctx: Any, of_total: Tensor, of_product: Tensor) -> Any:
        g, x = ctx.saved_tensors
        of_g = scale_shift(x, of_product, of_total) if ctx.needs_input_grad[0] else None
        return of_g, scale_shift(g, of_product) if ctx.needs_input_grad[1] else None, None


class _Normalise(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
        mean, variance = _kernels().moments(x, len(weight))
        rate = torch.rsqrt(variance + eps)
        scale = weight * rate
        ctx.save_for_backward(x, weight, mean, rate)
        ctx.mark_non_differentiable(mean, variance)
        return _kernels().combine([(x, scale)], bias - scale * mean), mean, variance

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, *_: Any) -> Any:
        return *_NormaliseBackward.apply(gradient, *ctx.saved_tensors), None  # type: ignore[no-untyped-call]


class _NormaliseBackward(torch.autograd.Function):
    """The gradient of BatchNorm and, in closed form, the gradient of that.

    With x̂ = (x − μ) ρ and means over the m numbers of a member's channel, a gradient g becomes
    w ρ (g − ḡ − q x̂), where q = mean(g x̂). Its product with a vector v is m w ρ Q, where Q = mean(v g) − v̄ ḡ − p q and
    p = mean(v x̂). The gradients of that are w ρ (v − v̄ − p x̂) for g, m ρ Q for w, and
    −w ρ² ((Q − 2 p q) x̂ + p (g − ḡ) + q (v − v̄)) for x.
    """

    @staticmethod
    def forward(ctx: Any, g: Tensor, x: Tensor, weight: Tensor, mean: Tensor, rate: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        count = x.numel() // weight.numel()
        total, product = _kernels().sums(g, x, len(weight), mean)
        g_mean, q = total / count, product * rate / count
        ctx.save_for_backward(g, x, weight, mean, rate, g_mean, q)
        by_g = weight * rate
        by_x = -by_g * rate * q
        return _kernels().combine([(g, by_g), (x, by_x)], -by_g * g_mean - by_x * mean), count * q, total

    @staticmethod
    @once_differentiable  # a third derivative would miss how mean and rate depend on x
    def backward(ctx: Any, v: Tensor, of_weight: Tensor, of_bias: Tensor) -> Any:
        g, x, weight, mean, rate, g_mean, q = ctx.saved_tensors
        count = x.numel() // weight.numel()
        total, product, pair = _kernels().sums(v, x, len(weight), mean, g)
        v_mean, p = total / count, product * rate / count
        joint = pair / count - v_mean * g_mean - p * q
        scale = weight * rate
        by_x = (of_weight - scale * p) * rate
        for_g = _kernels().combine([(v, scale), (x, by_x)], of_bias - scale * v_mean - by_x * mean)
        by_x = -(scale * (joint - 2 * p * q) + of_weight * q) * rate * rate
        by_g = (of_weight - scale * p) * rate
        by_v = -scale * rate * q
        for_x = _kernels().combine([(x, by_x), (g, by_g), (v, by_v)], -by_x * mean - by_g * g_mean - by_v * v_mean)
        return for_g, for_x, count * rate * joint, None, None
