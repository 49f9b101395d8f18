"""Plain per-member layers: what batch-ensemble layers become when r, s, bias and BatchNorm are multiplied out.

A tensor inside a folded network stands in one of three layouts:

- `shared`: `[batch, ...]`, the same for all members, as the input is;
- `packed`: `[batch, members · channels, ...]`, what grouped convolutions work on;
- `rows`: `[members · batch, ...]`, member-major.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from besnn.layers.layer import BatchEnsembleLayer
from besnn.layers.members import split_members
from besnn.layers.norm import from_packed, norm_affine, to_packed

_CONVOLUTIONS = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}


def folded_parameters(
    layer: BatchEnsembleLayer, norm: nn.modules.batchnorm._BatchNorm | None = None
) -> tuple[Tensor, Tensor | None]:
    """Weights `[members, *weight.shape]` and bias `[members, out]` of a layer and the BatchNorm behind it."""
    s: Tensor = layer.s
    bias: Tensor | None = layer.bias
    if norm is not None:
        scale, shift = norm_affine(norm, layer.members)
        s = s * scale
        bias = shift if bias is None else bias * scale + shift
    return layer.member_weights(s).detach(), None if bias is None else bias.detach()


class FoldedLinear(nn.Module):
    """A batched matrix product, `rows → rows`, or `shared → rows` without copying the input for each member."""

    weight: Tensor
    bias: Tensor | None

    def __init__(
        self, layer: BatchEnsembleLayer, norm: nn.modules.batchnorm._BatchNorm | None = None, shared_input: bool = False
    ):
        super().__init__()
        weight, bias = folded_parameters(layer, norm)
        self.members, self.batch_dim, self.shared_input = layer.members, layer.batch_dim, shared_input
        self.register_buffer("weight", weight.transpose(1, 2).contiguous())  # [members, in, out]
        self.register_buffer("bias", None if bias is None else bias[:, None, :].contiguous())

    def forward(self, x: Tensor) -> Tensor:
        """`[members · batch, ..., in]` (or `[batch, ..., in]` where shared) → `[members · batch, ..., out]`."""
        if self.shared_input:
            by_member = x.expand(self.members, *x.shape)
        else:
            by_member = split_members(x, self.members, self.batch_dim).movedim(self.batch_dim, 0)
        flat = by_member.flatten(1, -2)
        y = torch.bmm(flat, self.weight) if self.bias is None else torch.baddbmm(self.bias, flat, self.weight)
        y = y.reshape(*by_member.shape[:-1], y.shape[-1]).movedim(0, self.batch_dim)
        return y.flatten(self.batch_dim, self.batch_dim + 1)


class FoldedConv(nn.Module):
    """A grouped convolution, `packed → packed`; on `shared` input one convolution with all members' filters side by side."""

    weight: Tensor
    bias: Tensor | None

    def __init__(self, layer: Any, norm: nn.modules.batchnorm._BatchNorm | None = None, shared_input: bool = False):
        super().__init__()
        weight, bias = folded_parameters(layer, norm)
        self.transposed = layer.transposed
        self.options = {"stride": layer.stride, "padding": layer.padding, "dilation": layer.dilation}
        self.options["groups"] = 1 if shared_input else layer.groups * layer.members
        self.border: tuple[str, list[int]] | None = None
        if self.transposed:
            self.options["output_padding"] = layer.output_padding
        elif layer.padding_mode != "zeros":
            self.border, self.options["padding"] = (layer.padding_mode, layer._reversed_padding_repeated_twice), 0
        beside_each_other = 1 if self.transposed and shared_input else 0  # the axis of the output channels, groups aside
        self.register_buffer("weight", torch.cat(list(weight), dim=beside_each_other).contiguous())
        self.register_buffer("bias", None if bias is None else bias.flatten().contiguous())

    def forward(self, x: Tensor) -> Tensor:
        """`[batch, (members ·) in, ...] → [batch, members · out, ...]`."""
        if self.border is not None:
            mode, widths = self.border
            x = F.pad(x, widths, mode=mode)
        convolve = F.conv_transpose2d if self.transposed else _CONVOLUTIONS[x.ndim - 2]
        return convolve(x, self.weight, self.bias, **self.options)


class OnRows(nn.Module):
    """Runs a `packed → packed` layer on `rows`."""

    def __init__(self, packed: nn.Module, members: int) -> None:
        super().__init__()
        self.packed, self.members = packed, members

    def forward(self, x: Tensor) -> Tensor:
        """`[members · batch, in, ...] → [members · batch, out, ...]`."""
        return from_packed(self.packed(to_packed(x, self.members)), self.members)


class PackedAffine(nn.Module):
    """A BatchNorm in evaluation that no layer in front could take up, on `packed` input."""

    scale: Tensor
    shift: Tensor

    def __init__(self, norm: nn.modules.batchnorm._BatchNorm, members: int) -> None:
        super().__init__()
        scale, shift = norm_affine(norm, members)
        self.register_buffer("scale", scale.detach().flatten())
        self.register_buffer("shift", shift.detach().flatten())

    def forward(self, x: Tensor) -> Tensor:
        """Scales and shifts every channel."""
        shape = (1, -1, *[1] * (x.ndim - 2))
        return torch.addcmul(self.shift.reshape(shape), x, self.scale.reshape(shape))
