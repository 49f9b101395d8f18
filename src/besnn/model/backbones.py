"""Feature extractors as plain networks, which `batch_ensemble` converts: the paper's three, and two for any data."""

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor, nn


def mlp(inputs: int, hidden: Sequence[int] = (128, 128), feature_dim: int = 128) -> nn.Sequential:
    """Φ for tables: linear layers with ReLU between them."""
    widths = [inputs, *hidden, feature_dim]
    layers: list[nn.Module] = []
    for narrow, wide in itertools.pairwise(widths):
        layers += [nn.Linear(narrow, wide), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def two_moons_mlp() -> nn.Sequential:
    """Φ for Two Moons: 2 → 32 → 32 → 32."""
    return mlp(2, (32, 32), 32)


def convnet(input_shape: Sequence[int], hidden: Sequence[int] = (64, 128, 128), feature_dim: int = 256) -> nn.Sequential:
    """Φ for images of any size: 3×3 convolution, BatchNorm and ReLU for each width, halving while there is something to halve.

    Args:
        input_shape: `(channels, h, w)`.
        hidden: the widths of the blocks.
        feature_dim: d.

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
    channels: int = 1,
    feature_dim: int = 256,
    hidden_dim: int | None = 256,
    widths: tuple[int, int, int] = (64, 128, 128),
    last_kernel: int = 3,
    paddings: tuple[int, int, int] = (1, 1, 0),
) -> nn.Sequential:
    """Φ for 28×28 images: three 3×3 convolutions, each with BatchNorm, ReLU and 2×2 max-pooling, then 512 → 256 → d.

    The children `trunk` (up to the 512 flattened convolutional features) and `head` can be named as layers for density scores.

    Args:
        channels: of the images.
        feature_dim: d.
        hidden_dim: width of the head's hidden layer. None: no such layer, and a ReLU on the features, for a method that puts a
            linear map of its own behind them.
        widths: output channels of the convolutions.
        last_kernel: kernel size of the last convolution, odd; a larger one is padded as much more.
        paddings: of the three convolutions. The paper does not state them; (1, 1, 0), (1, 0, 0) and (0, 1, 0) all give 512.

    >>> list(fashion_convnet()(torch.rand(2, 1, 28, 28)).shape)
    [2, 256]
    """

    def block(inputs: int, outputs: int, kernel: int, padding: int) -> list[nn.Module]:
        return [nn.Conv2d(inputs, outputs, kernel, padding=padding), nn.BatchNorm2d(outputs), nn.ReLU(), nn.MaxPool2d(2)]

    first, second, third = widths
    blocks = [
        *block(channels, first, 3, padding=paddings[0]),
        *block(first, second, 3, padding=paddings[1]),
        *block(second, third, last_kernel, padding=paddings[2] + (last_kernel - 3) // 2),
    ]
    side = 28
    for padding in paddings:
        side = (side + 2 * padding - 2) // 2
    flat = side * side * third
    head = (
        nn.Sequential(nn.Linear(flat, feature_dim), nn.ReLU())
        if hidden_dim is None
        else nn.Sequential(nn.Linear(flat, hidden_dim), nn.ReLU(), nn.Linear(hidden_dim, feature_dim))
    )
    return _named(trunk=nn.Sequential(*blocks, nn.Flatten()), head=head)


def cifar_resnet18(channels: int = 3, feature_dim: int = 512, width: int = 64) -> nn.Sequential:
    """Φ for 32×32 images: ResNet-18 with the CIFAR stem (3×3, stride 1, no pooling), then 8 · width → d.

    The child `trunk` (up to the pooled features), its stages `trunk.stage1` to `trunk.stage4` and the child `head` can be named
    as layers for density scores.

    Args:
        channels: of the images.
        feature_dim: d.
        width: output channels of the stem and of the first stage; each further stage doubles them.

    >>> list(cifar_resnet18()(torch.rand(2, 3, 32, 32)).shape)
    [2, 512]
    """
    stem = nn.Sequential(nn.Conv2d(channels, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU())
    widths = [width, width, 2 * width, 4 * width, 8 * width]
    stages = {
        f"stage{number}": nn.Sequential(
            ResidualBlock(inputs, outputs, 1 if number == 1 else 2), ResidualBlock(outputs, outputs, 1)
        )
        for number, (inputs, outputs) in enumerate(itertools.pairwise(widths), start=1)
    }
    trunk = _named(stem=stem, **stages, pool=nn.AdaptiveAvgPool2d(1), flat=nn.Flatten())
    return _named(trunk=trunk, head=nn.Linear(widths[-1], feature_dim))


class ResidualBlock(nn.Module):
    """The basic block of He et al. 2016: two 3×3 convolutions around a shortcut.

    It starts as its shortcut alone (Goyal et al. 2017). Features start smaller by it, so that first distances are not so large
    that exp(−d̄) is nothing.
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
        """`[batch, inputs, h, w] → [batch, outputs, h / stride, w / stride]`."""
        y = torch.relu(self.norm1(self.conv1(x)))
        y = self.norm2(self.conv2(y))
        return torch.relu(y + self.shortcut(x))


def _named(**children: nn.Module) -> nn.Sequential:
    sequence = nn.Sequential()
    for name, child in children.items():
        sequence.add_module(name, child)
    return sequence
