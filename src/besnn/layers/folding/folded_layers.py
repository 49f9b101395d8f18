"""Plain layers per member: what batch-ensemble layers become when r, s, bias and BatchNorm are multiplied out.

A tensor inside a folded network is in one of three layouts:

- `shared`: `[batch, ...]`, the same for all members, as the input is;
- `apart`: one tensor `[batch, channels, ...]` per member, for convolutions;
- `rows`: `[members · batch, ...]`, member-major, for matrix products.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from besnn.errors import InputError
from besnn.layers.layer import BatchEnsembleLayer, BatchEnsembleLinear
from besnn.layers.members import split_members
from besnn.layers.norm import norm_affine

_CONVOLUTIONS: dict[int, type[nn.Module]] = {3: nn.Conv1d, 4: nn.Conv2d, 5: nn.Conv3d}


def folded_parameters(layer: BatchEnsembleLayer, norm: _BatchNorm | None = None) -> tuple[Tensor, Tensor | None]:
    """Return the weights `[members, *weight.shape]` and bias `[members, out]` of a layer and the BatchNorm after it."""
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
        """Map `[members · batch, ..., in]` (shared: `[batch, ..., in]`) to `[members · batch, ..., out]`."""
        if self.holds_norm and x.ndim > 2:  # there BatchNorm works along axis 1, not along the features
            raise InputError(f"input has shape {list(x.shape)} in front of a folded BatchNorm: put nn.Identity() before it")
        x = x.movedim(self.batch_dim, 0)
        by_member = x.expand(self.members, *x.shape) if self.shared_input else split_members(x, self.members)
        flat = by_member.flatten(1, -2)
        y = torch.bmm(flat, self.weight) if self.bias is None else torch.baddbmm(self.bias, flat, self.weight)
        # flattened first: joining only the first two axes, torch.export loses the strides to a symbolic minimum
        rows = y.flatten().view(self.members * by_member.shape[1], *x.shape[1:-1], y.shape[-1])
        return rows.movedim(0, self.batch_dim)


def member_convolutions(layer: Any, norm: _BatchNorm | None = None) -> list[nn.Module]:
    """Return one plain convolution per member, `shared` or `apart → apart`."""
    weights, biases = folded_parameters(layer, norm)
    by_member = [None] * layer.members if biases is None else biases.unbind()
    return [_plain_convolution(layer, *parameters) for parameters in zip(weights, by_member, strict=True)]


def _plain_convolution(layer: Any, weight: Tensor, bias: Tensor | None) -> nn.Module:
    """Return torch's convolution with a layer's geometry and weights of its own."""
    names = ["kernel_size", "stride", "padding", "dilation", "padding_mode", "groups"]
    options = {name: getattr(layer, name) for name in [*names, *(["output_padding"] if layer.transposed else [])]}
    kind = nn.ConvTranspose2d if layer.transposed else _CONVOLUTIONS[weight.ndim]
    convolution: Any = kind(*layer.channels(), bias=bias is not None, device="meta", **options)
    convolution.weight = nn.Parameter(weight.clone(memory_format=torch.contiguous_format), requires_grad=False)
    if bias is not None:
        convolution.bias = nn.Parameter(bias.contiguous(), requires_grad=False)
    return convolution  # type: ignore[no-any-return]  # its class depends on the weight


class FoldedConv(nn.Module):
    """One plain convolution per member, `rows → rows`."""

    def __init__(self, layer: BatchEnsembleLayer) -> None:
        super().__init__()
        self.convolutions = nn.ModuleList(member_convolutions(layer))

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Map `[members · batch, in, ...]` to `[members · batch, out, ...]`; further arguments are those of torch's layer."""
        by_member = split_members(x, len(self.convolutions))
        return torch.cat([conv(rows, *args, **kwargs) for conv, rows in zip(self.convolutions, by_member, strict=True)])


class Affine(nn.Module):
    """A BatchNorm in evaluation that does not follow a layer: scales and shifts every channel."""

    scale: Tensor
    shift: Tensor

    def __init__(self, scale: Tensor, shift: Tensor) -> None:
        super().__init__()
        self.register_buffer("scale", scale.detach().clone())
        self.register_buffer("shift", shift.detach().clone())

    def forward(self, x: Tensor) -> Tensor:
        """Map `[batch, channels, ...]` to the same shape."""
        shape = (1, -1, *[1] * (x.ndim - 2))
        return torch.addcmul(self.shift.reshape(shape), x, self.scale.reshape(shape))


def member_affines(norm: _BatchNorm, members: int) -> list[nn.Module]:
    """Return one affine map per member for a BatchNorm, `apart → apart`."""
    return [Affine(*of_member) for of_member in zip(*norm_affine(norm, members), strict=True)]


def fold_layers(module: nn.Module) -> nn.Module:
    """Replace every batch-ensemble layer inside a module by its folded form on `rows`, in place."""
    if isinstance(module, BatchEnsembleLinear):
        return FoldedLinear(module)
    if isinstance(module, BatchEnsembleLayer):
        return FoldedConv(module)
    folded = {layer: fold_layers(layer) for layer in module.children()}
    for name, layer in module._modules.items():  # unlike named_children, with all names of a layer that has several
        if layer is not None:
            setattr(module, name, folded[layer])
    return module
