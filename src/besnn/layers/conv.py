"""The batch-ensemble convolutions: r scales the input channels, s the output channels."""

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from besnn.layers.layer import BatchEnsembleLayer


class _BatchEnsembleConv(BatchEnsembleLayer):
    """What the convolutions share; joined with one of torch's convolution classes."""

    in_channels: int
    out_channels: int

    def channels(self) -> tuple[int, int]:
        """`(in_channels, out_channels)`."""
        return self.in_channels, self.out_channels

    def shared(self, x: Tensor) -> Tensor:
        """The convolution with the shared weight, padded as torch's layer would."""
        convolved: Tensor = self._conv_forward(x, self.weight, None)  # type: ignore[operator]  # torch's, of the class joined with
        return convolved


class BatchEnsembleConv1d(_BatchEnsembleConv, nn.Conv1d):
    """`nn.Conv1d` with `members=`: `[members · batch, in, length] → [members · batch, out, length']`."""


class BatchEnsembleConv2d(_BatchEnsembleConv, nn.Conv2d):
    """`nn.Conv2d` with `members=`: `[members · batch, in, h, w] → [members · batch, out, h', w']`.

    >>> import torch
    >>> from besnn.layers import tile
    >>> layer = BatchEnsembleConv2d(1, 8, 3, padding="same", members=4)
    >>> list(layer(tile(torch.ones(2, 1, 6, 6), 4)).shape)
    [8, 8, 6, 6]
    """


class BatchEnsembleConv3d(_BatchEnsembleConv, nn.Conv3d):
    """`nn.Conv3d` with `members=`: `[members · batch, in, d, h, w] → [members · batch, out, d', h', w']`."""


class BatchEnsembleConvTranspose2d(_BatchEnsembleConv, nn.ConvTranspose2d):
    """`nn.ConvTranspose2d` with `members=`; `forward` takes torch's `output_size` too."""

    def shared(self, x: Tensor, output_size: list[int] | None = None) -> Tensor:
        """The transposed convolution with the shared weight."""
        padding: Any = self.padding  # torch annotates lists here, and passes tuples itself
        geometry: Any = (self.stride, padding, self.kernel_size, 2, self.dilation)
        output_padding = self._output_padding(x, output_size, *geometry)
        return F.conv_transpose2d(x, self.weight, None, self.stride, padding, output_padding, self.groups, self.dilation)
