"""BatchEnsemble (Wen et al. 2020): a softmax classifier of batch-ensemble layers, which is a BE-SNN without class features."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor, nn

from besnn.baselines.method import EnsembleConfig, FastWeights, MakeBackbone, Norm, OwnInputs, Smoothing
from besnn.baselines.softmax import SoftmaxObjective
from besnn.checks import check_inputs
from besnn.errors import InputError
from besnn.layers import BatchEnsembleLinear, Initialiser, initialiser, split_members
from besnn.model import EvidenceKind, Objective, OODClassifier
from besnn.model.protocol import BatchEnsembled
from besnn.objective.batches import rows_and_labels


class BatchEnsembleClassifier(BatchEnsembled):
    """A softmax classifier whose members share all weights up to rank-1 factors; its arguments are those of `BESNN`.

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
        super().__init__(feature_extractor, num_classes, feature_dim, members, norm, init, (), mirror)
        self.head = BatchEnsembleLinear(feature_dim, num_classes, members=members, init=init)

    def evidence(self, features: Tensor) -> Tensor:
        """Return the logits, `[members, batch, classes]`."""
        return split_members(self.head(features.flatten(0, 1)), self.members)


@dataclass(frozen=True)
class BatchEnsembleObjective(SoftmaxObjective):
    """Cross-entropy, averaged over members and batch. `own_inputs` means what it means in `BESNNObjective`.

    >>> import torch
    >>> from besnn.model import two_moons_mlp
    >>> model = BatchEnsembleClassifier(two_moons_mlp(), num_classes=2, feature_dim=32)
    >>> list(BatchEnsembleObjective()(model, torch.rand(16, 2), torch.arange(16) % 2))
    ['classification']
    """

    own_inputs: bool = False

    def loss(self, model: OODClassifier, x: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of a batch, a scalar."""
        if not isinstance(model, BatchEnsembleClassifier):
            raise InputError(f"the model is a {type(model).__name__}: this objective is for a BatchEnsembleClassifier")
        check_inputs(x)
        rows, labels = rows_and_labels(x, labels, model.members, self.own_inputs)
        return self.classification(model.evidence(model.feature_rows(rows)), labels)


class BatchEnsembleConfig(EnsembleConfig):
    """A BatchEnsemble of softmax networks."""

    name: Literal["batch-ensemble"] = "batch-ensemble"
    norm: Norm = "shared"
    fast_weights: FastWeights = "normal:0.25"
    label_smoothing: Smoothing = 0.0
    own_inputs: OwnInputs = False

    def build(self, make_backbone: MakeBackbone, num_classes: int, feature_dim: int) -> tuple[OODClassifier, Objective]:
        """Build the model and its objective."""
        settings = self.members, self.norm, initialiser(self.fast_weights), self.mirror
        model = BatchEnsembleClassifier(make_backbone(), num_classes, feature_dim, *settings)
        return model, BatchEnsembleObjective(self.label_smoothing, self.own_inputs)
