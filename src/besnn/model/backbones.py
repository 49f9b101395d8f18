"""The paper's three feature extractors, as plain networks; `besnn.layers.batch_ensemble` converts them."""

import torch
from torch import Tensor, nn


def two_moons_mlp(width: int = 32) -> nn.Sequential:
    """Φ for Two Moons: 2 → 32 → 32 → 32."""
    return nn.Sequential(nn.Linear(2, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))


def fashion_convnet(channels: int = 1, feature_dim: int = 256) -> nn.Sequential:
    """Φ for 28×28 images: three 3×3 convolutions, each with BatchNorm, ReLU and 2×2 max-pooling, then 512 → 256 → d.

    The children `trunk` (up to the 512 flattened convolutional features) and `head` can be named as layers for density scores.

    >>> list(fashion_convnet()(torch.rand(2, 1, 28, 28)).shape)
    [2, 256]
    """

    def block(inputs: int, outputs: int, padding: int) -> list[nn.Module]:
        return [nn.Conv2d(inputs, outputs, 3, padding=padding), nn.BatchNorm2d(outputs), nn.ReLU(), nn.MaxPool2d(2)]

    trunk = nn.Sequential(*block(channels, 64, 1), *block(64, 128, 1), *block(128, 128, 0), nn.Flatten())
    head = nn.Sequential(nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, feature_dim))
    return _named(trunk=trunk, head=head)


def cifar_resnet18(channels: int = 3, feature_dim: int = 512) -> nn.Sequential:
    """Φ for 32×32 images: ResNet-18 with the CIFAR stem (3×3, stride 1, no pooling), then 512 → d.

    >>> list(cifar_resnet18()(torch.rand(2, 3, 32, 32)).shape)
    [2, 512]
    """
    stem: list[nn.Module] = [nn.Conv2d(channels, 64, 3, padding=1, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
    blocks: list[nn.Module] = []
    inputs = 64
    for outputs, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        blocks += [ResidualBlock(inputs, outputs, stride), ResidualBlock(outputs, outputs, 1)]
        inputs = outputs
    trunk = nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return _named(trunk=trunk, head=nn.Linear(512, feature_dim))


class ResidualBlock(nn.Module):
    """The basic block of He et al. 2016: two 3×3 convolutions around a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
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
