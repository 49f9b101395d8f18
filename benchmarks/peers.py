"""What one would otherwise run, written the textbook way: to compare speed with, not to use."""

import torch
from torch import Tensor, nn

from besnn.layers import tile
from besnn.model import BESNN


class Entropy(nn.Module):
    """One softmax network or an ensemble of them, scored by the entropy of the mean prediction.

    Args:
        networks: each maps `[batch, ...]` to logits `[batch, classes]`.
    """

    def __init__(self, *networks: nn.Module) -> None:
        super().__init__()
        self.networks = nn.ModuleList(networks)

    def forward(self, x: Tensor) -> Tensor:
        """Return the predictive entropy, `[batch]`."""
        probabilities = torch.stack([network(x).softmax(-1) for network in self.networks]).mean(0)
        return _entropy(probabilities)


class TextbookBatchEnsemble(nn.Module):
    """BatchEnsemble as in its paper: the input is tiled, and every layer scales its input and its output.

    Args:
        network: batch-ensemble layers that end in logits; it is run as it was trained.
        members: the number of members N.
    """

    def __init__(self, network: nn.Module, members: int) -> None:
        super().__init__()
        self.network, self.members = network, members

    def forward(self, x: Tensor) -> Tensor:
        """Return the predictive entropy, `[batch]`."""
        logits: Tensor = self.network(tile(x, self.members))
        probabilities = logits.unflatten(0, (self.members, -1)).softmax(-1).mean(0)
        return _entropy(probabilities)


class NaiveBESNN(nn.Module):
    """BE-SNN as in its paper: the input is tiled, class features are drawn anew, and distances go to each of them."""

    def __init__(self, model: BESNN) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        """Return the tempered entropy, `[batch]`."""
        features, samples = self.model.features(x), self.model.class_features()
        differences = features[:, :, None, None] - samples[:, None]  # [members, batch, classes, samples, d]
        distances = differences.square().sum(-1).mean(-1)
        tempered = -distances * torch.exp(-distances.amin(-1, keepdim=True))
        return _entropy(tempered.softmax(-1).mean(0))


def _entropy(probabilities: Tensor) -> Tensor:
    each: Tensor = torch.special.entr(probabilities)
    return each.sum(-1)
