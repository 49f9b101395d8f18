"""Plain per-member layers: what batch-ensemble layers become when r, s, bias and BatchNorm are multiplied out.

A tensor inside a folded network stands in one of four layouts:

- `shared`: `[batch, ...]`, the same for all members, as the input is;
- `packed`: `[batch, members · channels, ...]`, what grouped convolutions work on;
- `apart`: `[batch, channels, ...]` for each member, what plain convolutions work on;
- `rows`: `[members · batch, ...]`, member-major.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from besnn.errors import InputError
from besnn.layers.layer import BatchEnsembleLayer
from besnn.layers.linear import BatchEnsembleLinear
from besnn.layers.members import split_members
from besnn.layers.norm import from_packed, norm_affine, to_packed

_CONVOLUTIONS: dict[int, type[nn.Module]] = {3: nn.Conv1d, 4: nn.Conv2d, 5: nn.Conv3d}


def folded_parameters(layer: BatchEnsembleLayer, norm: _BatchNorm | None = None) -> tuple[Tensor, Tensor | None]:
    """Weights `[members, *weight.shape]` and bias `[members, out]` of a layer and the BatchNorm behind it."""
    s: Tensor = layer.s
    bias: Tensor | None = layer.bias
    if norm is not None:
        scale, shift = norm_affine(norm, layer.members)
        s = s * scale
        bias = shift if bias is None else bias * scale + shift
    dtype = layer.weight.dtype  # a BatchNorm may keep its statistics in a wider one
    return layer.member_weights(s).detach().to(dtype), None if bias is None else bias.detach().to(dtype)


class FoldedLinear(nn.Module):
    """A batched matrix product, `rows → rows`, or `shared → rows` without copying the input for each member."""

    weight: Tensor
    bias: Tensor | None

    def __init__(self, layer: BatchEnsembleLayer, norm: _BatchNorm | None = None, shared_input: bool = False) -> None:
        super().__init__()
        weight, bias = folded_parameters(layer, norm)
        self.members, self.batch_dim, self.shared_input = layer.members, layer.batch_dim, shared_input
        self.holds_norm = norm is not None
        self.register_buffer("weight", weight.transpose(1, 2).contiguous())  # [members, in, out]
        self.register_buffer("bias", None if bias is None else bias[:, None, :].contiguous())

    def forward(self, x: Tensor) -> Tensor:
        """`[members · batch, ..., in]` (or `[batch, ..., in]` where shared) → `[members · batch, ..., out]`."""
        if self.holds_norm and x.ndim > 2:  # there BatchNorm works along axis 1, not along the features
            raise InputError(
                f"input has shape {list(x.shape)} in front of a folded BatchNorm: put nn.Identity() before the BatchNorm"
            )
        x = x.movedim(self.batch_dim, 0)
        by_member = x.expand(self.members, *x.shape) if self.shared_input else split_members(x, self.members)
        flat = by_member.flatten(1, -2)
        y = torch.bmm(flat, self.weight) if self.bias is None else torch.baddbmm(self.bias, flat, self.weight)
        # by way of one axis: joining the first two, torch.export loses the strides to a symbolic minimum
        rows = y.flatten().view(self.members * by_member.shape[1], *x.shape[1:-1], y.shape[-1])
        return rows.movedim(0, self.batch_dim)


def convolution_like(layer: Any, weight: Tensor, bias: Tensor | None, groups: int) -> Any:
    """Torch's convolution with a layer's geometry, and with weights and groups of its own."""
    options = {name: getattr(layer, name) for name in ("kernel_size", "stride", "padding", "dilation", "padding_mode")}
    channels = weight.shape[1] * groups, weight.shape[0]
    if layer.transposed:
        options["output_padding"], channels = layer.output_padding, channels[::-1]
    kind = nn.ConvTranspose2d if layer.transposed else _CONVOLUTIONS[weight.ndim]
    convolution: Any = kind(*channels, groups=groups, bias=bias is not None, device="meta", **options)
    convolution.weight = nn.Parameter(weight.contiguous(), requires_grad=False)
    if bias is not None:
        convolution.bias = nn.Parameter(bias.contiguous(), requires_grad=False)
    return convolution


def member_convolutions(layer: Any, norm: _BatchNorm | None = None) -> list[nn.Module]:
    """One plain convolution for each member, `shared` or `apart → apart`."""
    weights, biases = folded_parameters(layer, norm)
    by_member = [None] * layer.members if biases is None else biases.unbind()
    return [
        convolution_like(layer, weight.clone(), bias, layer.groups) for weight, bias in zip(weights, by_member, strict=True)
    ]


class FoldedConv(nn.Module):
    """A grouped convolution, `packed → packed`; on `shared` input one convolution with all members' filters side by side."""

    def __init__(self, layer: Any, norm: _BatchNorm | None = None, shared_input: bool = False) -> None:
        super().__init__()
        weight, bias = folded_parameters(layer, norm)
        self.members, self.groups = layer.members, layer.groups
        self.group_major = shared_input and layer.groups > 1
        # Each group of channels meets the filters of all members on shared input, and those of one member on packed input.
        if not shared_input:
            weight = weight.flatten(0, 1)
        elif layer.transposed:
            weight = weight.movedim(0, 1).flatten(1, 2)
        else:
            weight = self._group_major(weight)
        if bias is not None:
            bias = self._group_major(bias) if shared_input else bias.flatten()
        self.conv = convolution_like(layer, weight, bias, layer.groups if shared_input else layer.members * layer.groups)

    def _group_major(self, by_member: Tensor) -> Tensor:
        """`[members, out, ...] → [groups · members · out / groups, ...]`."""
        grouped: Tensor = by_member.unflatten(1, (self.groups, -1))
        return grouped.transpose(0, 1).flatten(0, 2)

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """`[batch, (members ·) in, ...] → [batch, members · out, ...]`; further arguments are those of torch's layer."""
        y: Tensor = self.conv(x, *args, **kwargs)
        if self.group_major:
            y = y.unflatten(1, (self.groups, self.members, -1)).transpose(1, 2).flatten(1, 3)
        return y


class OnRows(nn.Module):
    """Runs a `packed → packed` layer on `rows`."""

    def __init__(self, packed: nn.Module, members: int) -> None:
        super().__init__()
        self.packed, self.members = packed, members

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """`[members · batch, in, ...] → [members · batch, out, ...]`."""
        return from_packed(self.packed(to_packed(x, self.members), *args, **kwargs), self.members)


class Affine(nn.Module):
    """A BatchNorm in evaluation that no layer in front could take up: scales and shifts every channel."""

    scale: Tensor
    shift: Tensor

    def __init__(self, scale: Tensor, shift: Tensor) -> None:
        super().__init__()
        self.register_buffer("scale", scale.detach().clone())
        self.register_buffer("shift", shift.detach().clone())

    def forward(self, x: Tensor) -> Tensor:
        """`[batch, channels, ...] → [batch, channels, ...]`."""
        shape = (1, -1, *[1] * (x.ndim - 2))
        return torch.addcmul(self.shift.reshape(shape), x, self.scale.reshape(shape))


def packed_affine(norm: _BatchNorm, members: int) -> Affine:
    """A BatchNorm, shared or each member's own, on `packed` input."""
    scale, shift = norm_affine(norm, members)
    return Affine(scale.flatten(), shift.flatten())


def member_affines(norm: _BatchNorm, members: int) -> list[nn.Module]:
    """A BatchNorm, shared or each member's own, on each member's part of `apart` input."""
    return [Affine(*of_member) for of_member in zip(*norm_affine(norm, members), strict=True)]


def fold_layers(module: nn.Module, members: int) -> nn.Module:
    """Replaces every batch-ensemble layer inside a module by its folded form on `rows`, in place."""
    if isinstance(module, BatchEnsembleLinear):
        return FoldedLinear(module)
    if isinstance(module, BatchEnsembleLayer):
        return OnRows(FoldedConv(module), members)
    folded = {layer: fold_layers(layer, members) for layer in module.children()}
    for name, layer in module._modules.items():  # unlike named_children, with all names of a layer that has several
        if layer is not None:
            setattr(module, name, folded[layer])
    return module
