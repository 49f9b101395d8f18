"""The layers that are found in networks of several kinds."""

import pytest
import torch
from torch import nn

from besnn.errors import InputError
from besnn.wrapping import find_layers


class Block(nn.Module):
    """Cannot be traced by torch.fx: its forward pass depends on its data."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.conv, self.norm, self.relu = nn.Conv2d(inputs, outputs, 3, 2, 1), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)

    def forward(self, x):
        return self.relu(self.norm(self.conv(x if x.sum() > 0 else -x)))


class Convolutional(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer1, self.layer2, self.layer3 = Block(3, 4), nn.Sequential(Block(4, 8), nn.ReLU()), Block(8, 16)
        self.fc = nn.Linear(16, 5)

    def forward(self, x):
        return self.fc(self.layer3(self.layer2(self.layer1(x))).mean((2, 3)))


class Tokens(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Conv2d(3, 8, 4, 4)
        layers = [nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0) for _ in range(3)]
        self.blocks, self.norm, self.head = nn.Sequential(*layers), nn.LayerNorm(8), nn.Linear(8, 5)

    def forward(self, x):
        return self.head(self.norm(self.blocks(self.embed(x).flatten(2).transpose(1, 2)))[:, 0])


@pytest.mark.parametrize(
    ("network", "x", "expected"),
    [
        # what the last stage returns is, pooled, what goes into the classifier
        (Convolutional(), torch.rand(6, 3, 32, 32), ("layer1", "layer2", "fc:input")),
        (Tokens(), torch.rand(6, 3, 16, 16), ("embed", "blocks", "head:input")),
        (nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)), torch.rand(6, 4), ("2:input",)),
        (nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3), nn.Identity()), torch.rand(6, 4), ("2:input",)),
        # no linear layer at the end
        (nn.Sequential(nn.Conv2d(3, 5, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten()), torch.rand(6, 3, 8, 8), ("0",)),
    ],
)
def test_the_layers_that_are_found(network, x, expected):
    found = find_layers(network.eval(), x)
    assert found.names == expected
    assert (found.head is None) == (not expected[-1].endswith(":input"))
    assert not any(module._forward_hooks for module in network.modules())


def test_the_head_is_the_classifier():
    network = Convolutional().eval()
    head = find_layers(network, torch.rand(6, 3, 32, 32)).head
    assert torch.equal(head.weight, network.fc.weight)
    assert torch.equal(head.bias, network.fc.bias)


def test_nothing_to_look_at():
    class Scale(nn.Module):
        def forward(self, x):
            return 2 * x

    with pytest.raises(InputError, match="no inner layer of the network can be looked at"):
        find_layers(nn.Sequential(Scale()).eval(), torch.rand(6, 4))
