"""What the baselines of one network share."""

from torch import Tensor, nn

from besnn.checks import check_inputs, check_sizes
from besnn.model import OODClassifier
from besnn.model.protocol import check_plain, checked_features


class SingleNetwork(OODClassifier):
    """A classifier whose features come from one plain network.

    Args:
        feature_extractor: Φ, mapping a batch to `[batch, feature_dim]`.
        num_classes: C.
        feature_dim: d.
    """

    def __init__(self, feature_extractor: nn.Module, num_classes: int, feature_dim: int) -> None:
        super().__init__()
        check_sizes(num_classes, feature_dim=feature_dim)
        check_plain(feature_extractor)
        self.feature_extractor = feature_extractor
        self.num_classes, self.feature_dim, self.members = num_classes, feature_dim, 1

    def features(self, x: Tensor) -> Tensor:
        """Φ(x), `[1, batch, d]`, from a batch `[batch, ...]`."""
        check_inputs(x)
        return checked_features(self.feature_extractor(x), self.feature_dim).unsqueeze(0)
