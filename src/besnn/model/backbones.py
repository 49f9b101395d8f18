"""Feature extractors as plain networks, which `batch_ensemble` converts, and the registry by which recipes name them."""

import inspect
import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from pydantic import Field, NonNegativeInt, PositiveInt
from torch import Tensor, nn

from besnn.errors import InputError
from besnn.layers.embedding import PiecewiseLinear

Widths = Annotated[tuple[PositiveInt, ...], Field(max_length=100)]
"""Not more, because a forged model file with very many layers would take minutes to be refused."""


@dataclass(frozen=True)
class Backbone:
    """A feature extractor that a recipe can name. To add one, write its builder and enter it into `BACKBONES`.

    The builder is a function of `input_shape`, `feature_dim` and settings that returns a plain network. A setting has a type,
    which may be annotated with a pydantic `Field`, and a default. `size` is the height and width of its images; None for any.

    >>> BACKBONES["mlp"].inputs, list(BACKBONES["mlp"].settings)
    ('table', ['hidden'])
    """

    name: str
    builder: Callable[..., nn.Module]
    inputs: Literal["table", "image"]
    size: int | None = None

    @property
    def settings(self) -> dict[str, inspect.Parameter]:
        """The builder's arguments that a recipe may set, by name."""
        parameters = inspect.signature(self.builder).parameters
        return {name: value for name, value in parameters.items() if name not in ("input_shape", "feature_dim")}

    def build(self, input_shape: tuple[int, ...], feature_dim: int, settings: Mapping[str, object] = {}) -> nn.Module:
        """Build the network for inputs of one shape, `(columns,)` or `(channels, h, w)`.

        Settings that the builder does not have are those of other backbones, and ignored.
        """
        if (self.inputs == "image") != (len(input_shape) == 3):
            kind = "images [channels, h, w]" if self.inputs == "image" else "table rows [columns]"
            raise InputError(f"backbone {self.name!r} takes {kind}, not inputs {list(input_shape)}: use backbone.name=auto")
        if self.size is not None and tuple(input_shape[1:]) != (self.size, self.size):
            taken = f"{self.size}×{self.size} images"
            raise InputError(f"backbone {self.name!r} takes {taken}, not {list(input_shape)}: use backbone.name=convnet")
        own = {name: settings[name] for name in self.settings if name in settings}
        return self.builder(input_shape=input_shape, feature_dim=feature_dim, **own)


def mlp(
    input_shape: tuple[int, ...],
    hidden: Annotated[Widths, Field(description="widths of the hidden layers")] = (128, 128),
    feature_dim: int = 256,
) -> nn.Sequential:
    """Build Φ for tables: linear layers with ReLU between them.

    >>> list(mlp((3,), (16, 16), 8)(torch.rand(2, 3)).shape)
    [2, 8]
    """
    widths = [input_shape[0], *hidden, feature_dim]
    layers: list[nn.Module] = []
    for narrow, wide in itertools.pairwise(widths):
        layers += [nn.Linear(narrow, wide), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def tabular(
    input_shape: tuple[int, ...],
    hidden: Annotated[Widths, Field(description="widths of the hidden layers")] = (128, 128),
    feature_dim: int = 256,
    bins: Annotated[PositiveInt, Field(description="pieces of the embedding of each number")] = 4,
) -> nn.Sequential:
    """Build Φ for tables of any kind: a piecewise-linear embedding of each number, then linear layers with ReLU between them.

    >>> list(tabular((3,), (16, 16), 8)(torch.rand(2, 3)).shape)
    [2, 8]
    """
    return _named(embedding=PiecewiseLinear(bins), network=mlp((input_shape[0] * (1 + bins),), hidden, feature_dim))


def two_moons_mlp() -> nn.Sequential:
    """Build Φ for Two Moons: 2 → 32 → 32 → 32.

    >>> list(two_moons_mlp()(torch.rand(5, 2)).shape)
    [5, 32]
    """
    return mlp((2,), (32, 32), 32)


def convnet(
    input_shape: tuple[int, ...],
    hidden: Annotated[Widths, Field(description="widths of the blocks")] = (128, 128),
    feature_dim: int = 256,
) -> nn.Sequential:
    """Build Φ for images of any size: 3×3 convolution, BatchNorm and ReLU per width, each halved by pooling while possible.

    >>> list(convnet((1, 8, 8), (16, 32), 64)(torch.rand(2, 1, 8, 8)).shape)
    [2, 64]
    """
    channels, height, width = input_shape
    layers: list[nn.Module] = []
    for outputs in hidden:
        layers += [nn.Conv2d(channels, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU()]
        if min(height, width) >= 4:
            layers.append(nn.MaxPool2d(2))
            height, width = height // 2, width // 2
        channels = outputs
    pooled = min(2, height), min(2, width)
    trunk = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(pooled), nn.Flatten())
    flat = channels * pooled[0] * pooled[1]
    return _named(trunk=trunk, head=nn.Sequential(nn.Linear(flat, feature_dim), nn.ReLU(), nn.Linear(feature_dim, feature_dim)))


def fashion_convnet(
    input_shape: tuple[int, ...] = (1, 28, 28),
    feature_dim: int = 256,
    head_dim: Annotated[
        PositiveInt | None,
        Field(description="width of the head's hidden layer; null: no such layer, and a ReLU on the features"),
    ] = 256,
    widths: Annotated[
        tuple[PositiveInt, PositiveInt, PositiveInt], Field(description="output channels of the convolutions")
    ] = (64, 128, 128),
    last_kernel: Annotated[Literal[3, 5, 7], Field(description="kernel size of the last convolution")] = 3,
    paddings: Annotated[
        tuple[NonNegativeInt, NonNegativeInt, NonNegativeInt],
        Field(description="of the convolutions, for kernels of size 3; they decide how many features there are"),
    ] = (1, 1, 0),
) -> nn.Sequential:
    """Build Φ for 28×28 images: three 3×3 convolutions, each with BatchNorm, ReLU and 2×2 max-pooling, then 512 → 256 → d.

    The children `trunk` (up to the 512 flattened convolutional features) and `head` can be named as layers for density scores.
    The paper does not state the paddings; (1, 1, 0), (1, 0, 0) and (0, 1, 0) all give 512. A larger last kernel is padded as
    much more. Without a hidden layer in the head, a ReLU on the features suits a method that adds a linear map of its own.

    >>> list(fashion_convnet()(torch.rand(2, 1, 28, 28)).shape)
    [2, 256]
    """
    blocks: list[nn.Module] = []
    inputs, side = input_shape[0], 28
    for outputs, kernel, padding in zip(widths, (3, 3, last_kernel), paddings, strict=True):
        convolution = nn.Conv2d(inputs, outputs, kernel, padding=padding + (kernel - 3) // 2)
        blocks += [convolution, nn.BatchNorm2d(outputs), nn.ReLU(), nn.MaxPool2d(2)]
        inputs, side = outputs, (side + 2 * padding - 2) // 2
    flat = side * side * inputs
    head = (
        nn.Sequential(nn.Linear(flat, feature_dim), nn.ReLU())
        if head_dim is None
        else nn.Sequential(nn.Linear(flat, head_dim), nn.ReLU(), nn.Linear(head_dim, feature_dim))
    )
    return _named(trunk=nn.Sequential(*blocks, nn.Flatten()), head=head)


def cifar_resnet18(
    input_shape: tuple[int, ...] = (3, 32, 32),
    feature_dim: int = 512,
    width: Annotated[PositiveInt, Field(description="channels of the first stage; each further stage doubles them")] = 64,
) -> nn.Sequential:
    """Build Φ for 32×32 images: ResNet-18 with the CIFAR stem (3×3, stride 1, no pooling), then 8 · width → d.

    The child `trunk` (up to the pooled features), its stages `trunk.stage1` to `trunk.stage4` and the child `head` can be named
    as layers for density scores.

    >>> list(cifar_resnet18()(torch.rand(2, 3, 32, 32)).shape)
    [2, 512]
    """
    stem = nn.Sequential(nn.Conv2d(input_shape[0], width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU())
    widths = [width, width, 2 * width, 4 * width, 8 * width]
    stages = {
        f"stage{number}": nn.Sequential(
            ResidualBlock(inputs, outputs, 1 if number == 1 else 2), ResidualBlock(outputs, outputs, 1)
        )
        for number, (inputs, outputs) in enumerate(itertools.pairwise(widths), start=1)
    }
    trunk = _named(stem=stem, **stages, pool=nn.AdaptiveAvgPool2d(1), flat=nn.Flatten())
    return _named(trunk=trunk, head=nn.Linear(widths[-1], feature_dim))


def small_resnet(
    input_shape: tuple[int, ...],
    feature_dim: int = 64,
    channels: Annotated[
        PositiveInt | None,
        Field(description="of the first convolution; null: by the number of training images, see `channels_for`"),
    ] = None,
) -> nn.Sequential:
    """Build Φ for images of any size with few operations: a narrow ResNet-9 (Page 2019), then 16 · channels → d.

    Its children are `trunk` and `head`. In the trunk, `stem` shrinks the image until its shorter side is at most 16, with one
    convolution for 32 or 64 pixels and more for larger images; `stage1` is another convolution and halves it again, and
    `stage2` ends with a residual pair of convolutions. All of these can be named as layers for density scores.

    >>> list(small_resnet((3, 64, 48))(torch.rand(2, 3, 64, 48)).shape)
    [2, 64]
    """
    inputs, *sides = input_shape
    width, side = channels or channels_for(0), min(sides)
    stem: list[nn.Module] = []
    while not stem or side > 16:
        stride = 2 if side >= 48 else 1
        stem += _convolution(inputs, width, stride)
        if side > 16 * stride:
            stem.append(nn.MaxPool2d(2))
            side //= 2
        inputs, side = width, side // stride
    halves = [[nn.MaxPool2d(2)] if side >= least else [] for least in (4, 8)]
    stage1 = nn.Sequential(*_convolution(width, 2 * width), *halves[0])
    stage2 = nn.Sequential(*_convolution(2 * width, 4 * width), ResidualPair(4 * width), *halves[1])
    trunk = _named(stem=nn.Sequential(*stem), stage1=stage1, stage2=stage2, pool=nn.AdaptiveAvgPool2d(2), flat=nn.Flatten())
    return _named(trunk=trunk, head=nn.Linear(16 * width, feature_dim))


def channels_for(images: int) -> int:
    """Return the width of a `small_resnet` for a number of training images: more of them support a larger network.

    >>> channels_for(1_000), channels_for(10_000), channels_for(100_000)
    (24, 48, 64)
    """
    return 24 if images < 5_000 else 48 if images < 50_000 else 64


def _convolution(inputs: int, outputs: int, stride: int = 1) -> list[nn.Module]:
    return [nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]


class ResidualPair(nn.Module):
    """Two 3×3 convolutions, each with BatchNorm and ReLU, added to their input."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.body = nn.Sequential(*_convolution(channels, channels), *_convolution(channels, channels))

    def forward(self, x: Tensor) -> Tensor:
        """Map `[batch, channels, h, w]` to the same shape."""
        y: Tensor = x + self.body(x)
        return y


class ResidualBlock(nn.Module):
    """The basic block of He et al. 2016: two 3×3 convolutions around a shortcut.

    It starts as its shortcut alone (Goyal et al. 2017). Features start smaller that way, so that first distances are not so
    large that exp(−d̄) is zero.
    """

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        nn.init.zeros_(self.norm2.weight)
        self.shortcut = (
            nn.Identity()
            if stride == 1 and inputs == outputs
            else nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False), nn.BatchNorm2d(outputs))
        )

    def forward(self, x: Tensor) -> Tensor:
        """Map `[batch, inputs, h, w]` to `[batch, outputs, h / stride, w / stride]`."""
        y = torch.relu(self.norm1(self.conv1(x)))
        y = self.norm2(self.conv2(y))
        return torch.relu(y + self.shortcut(x))


def _named(**children: nn.Module) -> nn.Sequential:
    sequence = nn.Sequential()
    for name, child in children.items():
        sequence.add_module(name, child)
    return sequence


BACKBONES: dict[str, Backbone] = {
    "mlp": Backbone("mlp", mlp, "table"),
    "tabular": Backbone("tabular", tabular, "table"),
    "convnet": Backbone("convnet", convnet, "image"),
    "fashion-convnet": Backbone("fashion-convnet", fashion_convnet, "image", size=28),
    "small-resnet": Backbone("small-resnet", small_resnet, "image"),
    "cifar-resnet18": Backbone("cifar-resnet18", cifar_resnet18, "image", size=32),
}
"""All backbones, by the name in recipes. See `besnn.model.Backbone`."""
