"""The softmax network: features, a linear layer and cross-entropy."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch.nn.functional as F
from torch import Tensor, nn

from besnn.baselines.method import MakeBackbone, SingleNetwork, SingleNetworkConfig, Smoothing
from besnn.checks import check_labels
from besnn.errors import InputError
from besnn.model import EvidenceKind, Objective, OODClassifier
from besnn.objective import active_terms


class SoftmaxClassifier(SingleNetwork):
    """A network with a linear layer on top that outputs logits.

    >>> import torch
    >>> from besnn.model import two_moons_mlp
    >>> model = SoftmaxClassifier(two_moons_mlp(), num_classes=2, feature_dim=32)
    >>> list(model(torch.rand(5, 2)).shape)
    [1, 5, 2]
    """

    method: ClassVar[str] = "softmax"
    default_score: ClassVar[str] = "predictive-entropy"
    evidence_kind: ClassVar[EvidenceKind] = "logits"

    def __init__(self, feature_extractor: nn.Module, num_classes: int, feature_dim: int) -> None:
        super().__init__(feature_extractor, num_classes, feature_dim)
        self.head = nn.Linear(feature_dim, num_classes)

    def evidence(self, features: Tensor) -> Tensor:
        """Return the logits, `[1, batch, classes]`."""
        logits: Tensor = self.head(features)
        return logits


@dataclass(frozen=True)
class SoftmaxObjective:
    """Cross-entropy, averaged over members and batch.

    >>> import torch
    >>> from besnn.model import two_moons_mlp
    >>> model = SoftmaxClassifier(two_moons_mlp(), num_classes=2, feature_dim=32)
    >>> list(SoftmaxObjective()(model, torch.rand(16, 2), torch.arange(16) % 2))
    ['classification']
    """

    label_smoothing: float = 0.0  # the share of the label's probability that is spread over all classes

    def __post_init__(self) -> None:
        if not 0 <= self.label_smoothing <= 1:
            raise InputError(f"label_smoothing={self.label_smoothing}: pass a share between 0 and 1")

    def __call__(
        self, model: OODClassifier, x: Tensor, labels: Tensor, factors: Mapping[str, float] | None = None
    ) -> dict[str, Tensor]:
        """Return the term `classification`, a scalar."""
        weights = active_terms({"classification": 1.0}, factors)
        return {name: weight * self.loss(model, x, labels) for name, weight in weights.items()}

    def loss(self, model: OODClassifier, x: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of a batch, a scalar."""
        return self.classification(model(x), labels)

    def classification(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of logits `[members, batch, classes]`, a scalar."""
        return cross_entropy(logits, labels, self.label_smoothing).mean()


class SoftmaxConfig(SingleNetworkConfig):
    """A softmax network."""

    name: Literal["softmax"] = "softmax"
    label_smoothing: Smoothing = 0.0

    def build(self, make_backbone: MakeBackbone, num_classes: int, feature_dim: int) -> tuple[OODClassifier, Objective]:
        """Build the model and its objective."""
        return SoftmaxClassifier(make_backbone(), num_classes, feature_dim), SoftmaxObjective(self.label_smoothing)


def cross_entropy(logits: Tensor, labels: Tensor, label_smoothing: float = 0.0) -> Tensor:
    """Compute each member's cross-entropy, averaged over the batch, `[members]` from logits `[members, batch, classes]`.

    Labels are `[batch]`, or `[members, batch]` if members see different inputs.
    """
    members, batch, classes = logits.shape
    check_labels(labels, num_classes=classes, batch=batch, members=members)
    labels = labels.expand(members, batch).reshape(-1)
    rows = F.cross_entropy(logits.flatten(0, 1), labels, reduction="none", label_smoothing=label_smoothing)
    return rows.view(members, batch).mean(1)
