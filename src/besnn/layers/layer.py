"""The batch-ensemble mechanism, `y = layer(x ∘ r) ∘ s + b` (equation 4 of the paper), and the linear and convolution layers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from besnn.checks import check_sizes
from besnn.errors import InputError
from besnn.layers.gpu.scale_and_norm import scale_shift, use_kernels
from besnn.layers.members import Initialiser, normal, split_members
from besnn.layers.norm import MemberBatchNorm


class BatchEnsembleLayer(nn.Module):
    """Mixin that gives a torch layer `members` members, each with its own weights W ∘ (r_n s_nᵀ).

    A concrete layer inherits from this class and from torch's layer. It defines how torch's layer applies the shared weight
    (`shared`). Everything else is the same for all layers.
    """

    members: int
    weight: Tensor  # torch's own, shared by the members
    bias: Tensor | None  # [members, out]
    r: nn.Parameter  # [members, in], scales the input channels
    s: nn.Parameter  # [members, out], scales the output channels
    batch_dim: int = 0  # the axis of the input that holds members · batch
    channel_dim: int = 1

    def __init__(self, *args: Any, members: int, init: Initialiser | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._add_members(members, init or normal())

    @classmethod
    def from_plain(cls, layer: nn.Module, members: int, init: Initialiser, batch_dim: int = 0) -> Self:
        """Turn a torch layer into its batch-ensemble form *in place*, so that its weight, hooks, mode and device stay."""
        layer.__class__ = cls
        assert isinstance(layer, cls)
        layer.batch_dim = batch_dim
        layer._add_members(members, init)
        return layer

    def _add_members(self, members: int, init: Initialiser) -> None:
        check_sizes(members=members)
        self.members = members
        inputs, outputs = self.channels()
        like: dict[str, Any] = {"device": self.weight.device, "dtype": self.weight.dtype}
        self.r = nn.Parameter(init(torch.empty(members, inputs, **like)))
        self.s = nn.Parameter(init(torch.empty(members, outputs, **like)))
        if self.bias is not None:
            self.bias = nn.Parameter(self.bias.detach().repeat(members, 1), requires_grad=self.bias.requires_grad)

    def channels(self) -> tuple[int, int]:
        """Return the numbers of input and output channels, the widths of `r` and `s`."""
        rows, columns = self.weight.shape[0], self.weight.shape[1] * int(getattr(self, "groups", 1))
        return (rows, columns) if getattr(self, "transposed", False) else (columns, rows)

    def shared(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Apply torch's layer with the shared weight and no bias."""
        raise NotImplementedError

    def member_weights(self, s: Tensor | None = None) -> Tensor:
        """Return the explicit weights W ∘ (r_n s_nᵀ) of every member, `[members, *weight.shape]`, or those for another `s`."""
        weight = self.weight
        groups: int = getattr(self, "groups", 1)
        s = self.s if s is None else s
        # the scales of the weight's axes 0 and 1
        rows, columns = (self.r, s) if getattr(self, "transposed", False) else (s, self.r)
        columns = columns.unflatten(1, (groups, -1)).repeat_interleave(weight.shape[0] // groups, dim=1)
        scales = rows[:, :, None] * columns
        weights: Tensor = weight * scales.reshape(*scales.shape, *[1] * (weight.ndim - 2))
        return weights

    def forward(self, input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Map member-major rows to member-major rows; further arguments are those of torch's layer."""
        self._check(input)
        if use_kernels(input) and (self.batch_dim, self.channel_dim) == (0, 1):
            split_members(input, self.members)  # rejects rows that cannot be split among the members
            y = self.shared(scale_shift(input, self.r), *args, **kwargs)
            return scale_shift(y, self.s, self.bias)
        x = self._by_member(input)
        x = self._join(x * self._broadcast(self.r, x))
        y = self._by_member(self.shared(x, *args, **kwargs))
        s = self._broadcast(self.s, y)
        y = y * s if self.bias is None else torch.addcmul(self._broadcast(self.bias, y), y, s)
        return self._join(y)

    def _check(self, x: Tensor) -> None:
        """Raise unless the input has the layer's dtype and channels; broadcasting against `r` would accept other channels."""
        if x.dtype != self.r.dtype and not torch.is_autocast_enabled(x.device.type):
            raise InputError(f"input has dtype {x.dtype} but the layer {self.r.dtype}: convert one, e.g. x.to({self.r.dtype})")
        spatial = self.weight.ndim - 2
        batched = x.ndim == 2 + spatial if spatial else x.ndim >= 2 + self.batch_dim
        if not batched or x.shape[self.channel_dim] != self.r.shape[1]:
            raise InputError(
                f"input has shape {list(x.shape)} but the layer takes a batch with {self.r.shape[1]} channels "
                f"on axis {self.channel_dim}: check the input's layout, or add a batch axis with x[None]"
            )

    def _by_member(self, x: Tensor) -> Tensor:
        return split_members(x, self.members, self.batch_dim)

    def _join(self, x: Tensor) -> Tensor:
        return x.flatten(self.batch_dim, self.batch_dim + 1)

    def _broadcast(self, values: Tensor, x: Tensor) -> Tensor:
        """Shape `[members, channels]` to multiply `x`, whose members stand on their own axis.

        Under autocast, maps keep the dtype that a convolution gave them, since passing over them is what takes time; vectors
        are small, and become float32 again.
        """
        shape = [1] * x.ndim
        shape[self.batch_dim] = self.members
        shape[self.channel_dim + 1 if self.channel_dim > 0 else self.channel_dim] = values.shape[1]
        if self.weight.ndim > 2:
            values = values.to(x.dtype)
        return values.reshape(shape)

    def extra_repr(self) -> str:
        """Return torch's description with the number of members."""
        return f"{super().extra_repr()}, members={self.members}"


class BatchEnsembleLinear(BatchEnsembleLayer, nn.Linear):  # type: ignore[misc]  # torch annotates bias differently here
    """`nn.Linear` with `members=`: `[members · batch, ..., in] → [members · batch, ..., out]`.

    >>> from besnn.layers import tile
    >>> layer = BatchEnsembleLinear(3, 5, members=4)
    >>> list(layer(tile(torch.ones(2, 3), 4)).shape)
    [8, 5]
    """

    channel_dim = -1

    def shared(self, x: Tensor) -> Tensor:
        """Multiply with the shared weight."""
        return F.linear(x, self.weight)


class _BatchEnsembleConv(BatchEnsembleLayer):
    """Mixin for torch's convolutions: r scales the input channels, s the output channels."""

    def shared(self, x: Tensor) -> Tensor:
        """Convolve with the shared weight, padded as by torch's layer."""
        convolved: Tensor = self._conv_forward(x, self.weight, None)  # type: ignore[operator]  # of torch's class
        return convolved


class BatchEnsembleConv1d(_BatchEnsembleConv, nn.Conv1d):
    """`nn.Conv1d` with `members=`: `[members · batch, in, length] → [members · batch, out, length']`.

    >>> from besnn.layers import tile
    >>> layer = BatchEnsembleConv1d(2, 8, 3, members=4)
    >>> list(layer(tile(torch.ones(5, 2, 16), 4)).shape)
    [20, 8, 14]
    """


class BatchEnsembleConv2d(_BatchEnsembleConv, nn.Conv2d):
    """`nn.Conv2d` with `members=`: `[members · batch, in, h, w] → [members · batch, out, h', w']`.

    >>> from besnn.layers import tile
    >>> layer = BatchEnsembleConv2d(1, 8, 3, padding="same", members=4)
    >>> list(layer(tile(torch.ones(2, 1, 6, 6), 4)).shape)
    [8, 8, 6, 6]
    """


class BatchEnsembleConv3d(_BatchEnsembleConv, nn.Conv3d):
    """`nn.Conv3d` with `members=`: `[members · batch, in, d, h, w] → [members · batch, out, d', h', w']`.

    >>> from besnn.layers import tile
    >>> layer = BatchEnsembleConv3d(1, 8, 3, members=4)
    >>> list(layer(tile(torch.ones(2, 1, 6, 6, 6), 4)).shape)
    [8, 8, 4, 4, 4]
    """


class BatchEnsembleConvTranspose2d(_BatchEnsembleConv, nn.ConvTranspose2d):
    """`nn.ConvTranspose2d` with `members=`; `forward` takes torch's `output_size` too.

    >>> from besnn.layers import tile
    >>> layer = BatchEnsembleConvTranspose2d(2, 8, 2, stride=2, members=4)
    >>> list(layer(tile(torch.ones(2, 2, 6, 6), 4)).shape)
    [8, 8, 12, 12]
    """

    def shared(self, x: Tensor, output_size: list[int] | None = None) -> Tensor:
        """Apply the transposed convolution with the shared weight."""
        padding: Any = self.padding  # torch annotates lists here, and passes tuples itself
        geometry: Any = (self.stride, padding, self.kernel_size, 2, self.dilation)
        output_padding = self._output_padding(x, output_size, *geometry)
        return F.conv_transpose2d(x, self.weight, None, self.stride, padding, output_padding, self.groups, self.dilation)


def fast_parameters(module: nn.Module) -> Iterator[nn.Parameter]:
    """Yield the fast weights r and s of all batch-ensemble layers in a module, each once; found by type, not by name.

    >>> [list(parameter.shape) for parameter in fast_parameters(BatchEnsembleLinear(3, 5, members=4))]
    [[4, 3], [4, 5]]
    """
    layers = [layer for layer in module.modules() if isinstance(layer, BatchEnsembleLayer)]
    yield from dict.fromkeys(parameter for layer in layers for parameter in (layer.r, layer.s))


def members_of(module: nn.Module) -> int | None:
    """Return the number of members of a module's batch-ensemble layers; None if it has no such layer.

    >>> members_of(BatchEnsembleLinear(3, 5, members=4)), members_of(nn.Linear(3, 5))
    (4, None)
    """
    found = {layer.members for layer in module.modules() if isinstance(layer, BatchEnsembleLayer | MemberBatchNorm)}
    if len(found) > 1:
        raise InputError(f"the module mixes layers of {sorted(found)} members: build all of them with the same members=")
    return found.pop() if found else None
