"""From raw inputs (pixels, table columns) to what a network takes."""

from typing import Self

import torch
from torch import Tensor, nn

from besnn.errors import InputError


class Preprocessing(nn.Module):
    """Centres and scales each channel or column: `(x − mean) / std`, in float32.

    Attributes:
        input_shape: the shape of one raw input, `(channels, h, w)` or `(columns,)`.
        mean: by channel or column.
        std: by channel or column; a constant one keeps a std of 1.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, input_shape: tuple[int, ...], mean: Tensor, std: Tensor) -> None:
        super().__init__()
        self.input_shape = tuple(input_shape)
        self.register_buffer("mean", mean)
        self.register_buffer("std", std)

    @classmethod
    def fit(cls, inputs: Tensor) -> Self:
        """Takes the mean and standard deviation of raw inputs, `[n, channels, h, w]` or `[n, columns]`."""
        channel_values = inputs.movedim(1, 0).flatten(1)
        moments = [(values.double().mean(), values.double().std(correction=0)) for values in channel_values]
        mean = torch.stack([m for m, _ in moments]).float()
        std = torch.stack([s for _, s in moments]).float()
        return cls(tuple(inputs.shape[1:]), mean, torch.where(std > 0, std, torch.ones_like(std)))

    def forward(self, x: Tensor) -> Tensor:
        """Raw inputs `[batch, *input_shape]`, integers or floats → the network's float input."""
        if tuple(x.shape[1:]) != self.input_shape:
            raise InputError(f"an input has shape {list(x.shape[1:])}, but the model was trained on {list(self.input_shape)}")
        shape = (1, -1, *[1] * (x.ndim - 2))
        return (x.to(self.mean.dtype) - self.mean.reshape(shape)) / self.std.reshape(shape)
