"""Standardisation of raw inputs: pixels or table columns."""

from typing import Self

import torch
from torch import Tensor, nn

from besnn.errors import InputError

FARTHEST = 1e6
"""Standard deviations from the mean at which inputs are clipped, so that no network overflows on a finite input."""


class Preprocessing(nn.Module):
    """Standardises each channel or column of inputs `(channels, h, w)` or `(columns,)`: `(x − mean) / std`, in float32.

    >>> preprocessing = Preprocessing.fit(torch.tensor([[1.0, 7.0], [3.0, 7.0]]))
    >>> preprocessing(torch.tensor([[5.0, 8.0]])).tolist()
    [[3.0, 1.0]]
    """

    mean: Tensor
    std: Tensor  # 1 for a constant channel or column

    def __init__(self, input_shape: tuple[int, ...], mean: Tensor, std: Tensor) -> None:
        super().__init__()
        self.input_shape = tuple(input_shape)
        if mean.shape != self.input_shape[:1] or std.shape != self.input_shape[:1] or not bool((std > 0).all()):
            given = f"mean {list(mean.shape)} and std {list(std.shape)} for inputs {list(self.input_shape)}"
            raise InputError(f"{given}: give one of each per channel or column, std above 0")
        self.register_buffer("mean", mean)
        self.register_buffer("std", std)

    @classmethod
    def fit(cls, inputs: Tensor) -> Self:
        """Compute the mean and standard deviation of raw inputs, `[n, channels, h, w]` or `[n, columns]`."""
        others = [axis for axis in range(inputs.ndim) if axis != 1]
        count = inputs.numel() // inputs.shape[1]
        chunks = inputs.split(4096)  # a copy of all inputs in double precision could exceed memory
        mean = torch.stack([chunk.double().sum(others) for chunk in chunks]).sum(0) / count
        centre = mean.reshape(-1, *[1] * (inputs.ndim - 2))
        squares = torch.stack([(chunk.double() - centre).square().sum(others) for chunk in chunks]).sum(0)
        std = (squares / count).sqrt().float()
        constant = (inputs.amax(others) == inputs.amin(others)) | (std == 0)  # rounding can leave a constant column a tiny std
        return cls(tuple(inputs.shape[1:]), mean.float(), torch.where(constant, 1.0, std))

    def forward(self, x: Tensor) -> Tensor:
        """Map raw inputs `[batch, *input_shape]`, integers or floats, to the network's input."""
        if tuple(x.shape[1:]) != self.input_shape:
            raise InputError(f"an input has shape {list(x.shape[1:])}, but the model was trained on {list(self.input_shape)}")
        shape = (1, -1, *[1] * (x.ndim - 2))
        scaled = (x.to(self.mean.dtype) - self.mean.reshape(shape)) / self.std.reshape(shape)
        return scaled.clamp(-FARTHEST, FARTHEST)
