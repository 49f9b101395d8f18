"""What the methods of batch-ensemble layers share."""

from torch import Tensor

from besnn.checks import check_inputs
from besnn.layers import split_members, tile
from besnn.model.extractor import checked_features
from besnn.model.protocol import OODClassifier


class BatchEnsembled(OODClassifier):
    """A classifier whose `feature_extractor` is a batch ensemble.

    Attributes:
        feature_dim: d.
    """

    feature_dim: int

    def features(self, x: Tensor) -> Tensor:
        """Φ_n(x) of every member, `[members, batch, d]`, from an untiled batch `[batch, ...]`."""
        check_inputs(x)
        return self.feature_rows(tile(x, self.members, mirror=self.mirror and not self.training))

    def feature_rows(self, rows: Tensor) -> Tensor:
        """As `features`, from rows that stand member-major already, `[members · batch, ...]`."""
        return split_members(checked_features(self.feature_extractor(rows), self.feature_dim), self.members)
