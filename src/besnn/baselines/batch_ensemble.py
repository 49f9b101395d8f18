"""BatchEnsemble (Wen et al. 2020): a softmax classifier of batch-ensemble layers; a BE-SNN without class features."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from besnn.baselines.softmax import SoftmaxObjective, log_mean_softmax
from besnn.checks import check_inputs, check_sizes
from besnn.errors import InputError
from besnn.layers import BatchEnsembleLinear, Initialiser, split_members
from besnn.model import EvidenceKind, OODClassifier
from besnn.model.protocol import BatchEnsembled, as_batch_ensemble
from besnn.objective.rows import rows_and_labels


class BatchEnsembleClassifier(BatchEnsembled):
    """A softmax classifier whose members share all weights up to rank-1 factors; trained with `BatchEnsembleObjective`.

    Args:
        feature_extractor: Φ, mapping a batch to `[batch, feature_dim]`; of batch-ensemble layers, or plain and then converted.
        num_classes: C.
        feature_dim: d.
        members: N.
        norm: BatchNorm `"shared"` by the members or one for each `"member"`, where the extractor is converted here.
        init: how fast weights start; see `besnn.layers.members`.
        mirror: in evaluation, show every second member mirror images; see `BESNN`.

    >>> import torch
    >>> from besnn.model import two_moons_mlp
    >>> model = BatchEnsembleClassifier(two_moons_mlp(), num_classes=2, feature_dim=32, members=4)
    >>> list(model(torch.rand(5, 2)).shape)
    [4, 5, 2]
    """

    method: ClassVar[str] = "batch-ensemble"
    default_score: ClassVar[str] = "predictive-entropy"
    evidence_kind: ClassVar[EvidenceKind] = "logits"

    def __init__(
        self,
        feature_extractor: nn.Module,
        num_classes: int,
        feature_dim: int,
        members: int = 4,
        norm: str = "shared",
        init: Initialiser | None = None,
        mirror: bool = False,
    ) -> None:
        super().__init__()
        check_sizes(num_classes, feature_dim=feature_dim)
        self.feature_extractor = as_batch_ensemble(feature_extractor, members, norm, init)
        self.head = BatchEnsembleLinear(feature_dim, num_classes, members=members, init=init)
        self.num_classes, self.feature_dim, self.members, self.mirror = num_classes, feature_dim, members, mirror

    def evidence(self, features: Tensor) -> Tensor:
        """Logits, `[members, batch, classes]`."""
        return split_members(self.head(features.flatten(0, 1)), self.members)

    def log_probabilities(self, evidence: Tensor) -> Tensor:
        """The members' mean softmax, in log space, `[batch, classes]`."""
        return log_mean_softmax(evidence)


@dataclass(frozen=True)
class BatchEnsembleObjective(SoftmaxObjective):
    """Cross-entropy, averaged over members and batch.

    Attributes:
        own_inputs: deal the batch out to the members instead of showing all of it to each, as in `BESNNObjective`.

    >>> import torch
    >>> from besnn.model import two_moons_mlp
    >>> model = BatchEnsembleClassifier(two_moons_mlp(), num_classes=2, feature_dim=32, members=4)
    >>> list(BatchEnsembleObjective(own_inputs=True)(model, torch.randn(8, 2), torch.arange(8) % 2))
    ['classification']
    """

    own_inputs: bool = False

    def loss(self, model: OODClassifier, x: Tensor, labels: Tensor) -> Tensor:
        """The loss of a batch, a scalar."""
        if not isinstance(model, BatchEnsembleClassifier):
            raise InputError(f"the model is a {type(model).__name__}: this objective is for a BatchEnsembleClassifier")
        check_inputs(x)
        rows, labels = rows_and_labels(x, labels, model.members, self.own_inputs)
        return self.classification(model.evidence(model.feature_rows(rows)), labels)
