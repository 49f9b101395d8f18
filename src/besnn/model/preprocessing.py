"""From raw inputs (pixels, table columns, tokens) to what a network takes."""

import math
from typing import Any, Literal, Self, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from besnn.errors import InputError

FARTHEST = 1e6
"""Standard deviations from the mean at which inputs are clipped, so that no network overflows on a finite input."""

Interpolation = Literal["nearest", "bilinear", "bicubic"]
Form = Literal["pixels", "numbers", "tokens"]


class Preprocessing(nn.Module):
    """Standardises each channel or column of inputs `(channels, h, w)` or `(columns,)`: `(x − mean) / std`, in float32.

    All that it does is described by numbers, so that it can be saved and exported.

    Args:
        input_shape: of one raw input.
        mean, std: one per channel or column.
        divisor: inputs are divided by it first; 255 if `mean` and `std` are of pixels from 0 to 1.
        resize: the height and width that images are resized to before anything else.
        crop: the height and width that are then cut out of their middle.
        interpolation: how images are resized, with antialiasing.
        short_side: image files have their shorter side resized to this, and `input_shape` is cut out of their middle; unless
            given, they are stretched to it.
        form: `pixels` (uint8), `numbers` (float32) or `tokens` (whole numbers, which the network gets as int64 and unchanged);
            pixels for images and numbers for rows unless given.

    >>> preprocessing = Preprocessing.fit(torch.tensor([[1.0, 7.0], [3.0, 7.0]]))
    >>> preprocessing(torch.tensor([[5.0, 8.0]])).tolist()
    [[3.0, 1.0]]
    """

    mean: Tensor
    std: Tensor  # 1 for a constant channel or column

    def __init__(
        self,
        input_shape: tuple[int, ...],
        mean: Tensor,
        std: Tensor,
        *,
        divisor: float = 1.0,
        resize: tuple[int, int] | None = None,
        crop: tuple[int, int] | None = None,
        interpolation: Interpolation = "bilinear",
        short_side: int | None = None,
        form: Form | None = None,
    ) -> None:
        super().__init__()
        self.input_shape = tuple(input_shape)
        if mean.shape != self.input_shape[:1] or std.shape != self.input_shape[:1] or not bool((std > 0).all()):
            given = f"mean {list(mean.shape)} and std {list(std.shape)} for inputs {list(self.input_shape)}"
            raise InputError(f"{given}: give one of each per channel or column, std above 0")
        self.register_buffer("mean", mean)
        self.register_buffer("std", std)
        self.form: Form = form or ("pixels" if len(self.input_shape) == 3 else "numbers")
        self.divisor, self.interpolation, self.short_side = float(divisor), interpolation, short_side
        self.resize, self.crop = (None if size is None else (int(size[0]), int(size[1])) for size in (resize, crop))
        self._check()

    def _check(self) -> None:
        for name, value, choices in (("form", self.form, Form), ("interpolation", self.interpolation, Interpolation)):
            if value not in get_args(choices):
                raise InputError(f"{name}={value!r} is unknown: use one of {', '.join(get_args(choices))}")
        if not 0 < self.divisor < math.inf:
            raise InputError(f"divisor={self.divisor}: give a number above 0")
        sizes = [size for size in (self.resize, self.crop) if size is not None]
        if sizes and (len(self.input_shape) != 3 or min(map(min, sizes)) < 1):
            raise InputError(f"inputs {list(self.input_shape)} cannot be resized to {sizes[0]}: resize images, to 1×1 or more")
        before = self.resize or self.input_shape[1:]
        if self.crop is not None and (self.crop[0] > before[0] or self.crop[1] > before[1]):
            raise InputError(f"a crop of {self.crop} does not fit into images of {tuple(before)}: resize them to a larger size")

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of raw inputs."""
        return torch.uint8 if self.form == "pixels" else torch.float32

    def settings(self) -> dict[str, Any]:
        """Return all but shape, mean and std, as JSON-able values."""
        settings = ("divisor", "resize", "crop", "interpolation", "short_side", "form")
        return {name: list(value) if isinstance(value := getattr(self, name), tuple) else value for name in settings}

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
        if self.form == "tokens":
            return x.long()
        x = x.to(self.mean.dtype)
        if self.resize is not None and self.resize != tuple(x.shape[2:]):
            x = self._resized(x)
        if self.crop is not None:
            x = self._cropped(x, *self.crop)
        if self.divisor != 1:
            x = x / self.divisor
        shape = (1, -1, *[1] * (x.ndim - 2))
        return ((x - self.mean.reshape(shape)) / self.std.reshape(shape)).clamp(-FARTHEST, FARTHEST)

    def _resized(self, x: Tensor) -> Tensor:
        if self.interpolation == "nearest":
            return F.interpolate(x, self.resize, mode="nearest")
        x = F.interpolate(x, self.resize, mode=self.interpolation, align_corners=False, antialias=True)
        return x.round().clamp(0, 255) if self.form == "pixels" else x  # as if the images had been stored at that size

    def _cropped(self, x: Tensor, height: int, width: int) -> Tensor:
        # Halves are rounded to even, as torchvision does.
        top, left = round((x.shape[2] - height) / 2), round((x.shape[3] - width) / 2)
        return x[:, :, top : top + height, left : left + width]
