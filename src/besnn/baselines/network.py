"""What the baselines of one network share, and the checks that all baselines share."""

from torch import Tensor, nn

from besnn.checks import check_inputs
from besnn.errors import InputError
from besnn.layers import members_of
from besnn.model import OODClassifier


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


def check_sizes(num_classes: int, **sizes: int) -> None:
    """Refuses fewer than two classes, and any other size below one."""
    for name, size, least in [("num_classes", num_classes, 2), *((name, size, 1) for name, size in sizes.items())]:
        if not isinstance(size, int) or size < least:
            raise InputError(f"{name}={size!r}: give a whole number, {least} or more")


def check_plain(feature_extractor: nn.Module) -> None:
    """Refuses a network of batch-ensemble layers: it would split a plain batch among its members in silence."""
    if (members := members_of(feature_extractor)) is not None:
        raise InputError(f"the feature extractor is a batch ensemble of {members} members: pass a plain network")


def checked_features(features: Tensor, feature_dim: int) -> Tensor:
    """A feature extractor's output, once its shape is known to be `[rows, feature_dim]`."""
    if features.ndim != 2 or features.shape[1] != feature_dim:
        raise InputError(
            f"the feature extractor returned shape {list(features.shape)}: expected [rows, feature_dim={feature_dim}]"
        )
    return features
