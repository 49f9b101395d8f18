"""The deep ensemble (Lakshminarayanan et al. 2017): independently initialised softmax networks, trained side by side."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from besnn.baselines.method import EnsembleConfig, MakeBackbone, Smoothing
from besnn.baselines.softmax import SoftmaxObjective, cross_entropy
from besnn.checks import check_inputs, check_sizes
from besnn.errors import InputError
from besnn.layers import mirror_views
from besnn.model import EvidenceKind, Objective, OODClassifier
from besnn.model.protocol import check_plain, checked_features


class DeepEnsemble(OODClassifier):
    """Softmax networks that share only their batches; their probabilities are averaged.

    The feature extractors Φ_1 … Φ_N each map a batch to `[batch, feature_dim]`, with weights of their own.

    >>> from besnn.model import two_moons_mlp
    >>> model = DeepEnsemble([two_moons_mlp() for _ in range(4)], num_classes=2, feature_dim=32)
    >>> list(model(torch.rand(5, 2)).shape)
    [4, 5, 2]
    """

    method: ClassVar[str] = "deep-ensemble"
    default_score: ClassVar[str] = "predictive-entropy"
    evidence_kind: ClassVar[EvidenceKind] = "logits"

    def __init__(
        self, feature_extractors: Sequence[nn.Module], num_classes: int, feature_dim: int, mirror: bool = False
    ) -> None:
        super().__init__()
        check_sizes(num_classes, feature_dim=feature_dim)
        if not feature_extractors:
            raise InputError("a deep ensemble of 0 feature extractors: pass one per member")
        for extractor in feature_extractors:
            check_plain(extractor)
        owned = [parameter for extractor in feature_extractors for parameter in extractor.parameters()]
        if len(owned) > len(set(owned)):
            raise InputError("feature extractors share weights: build each separately, as in [build() for _ in range(4)]")
        self.feature_extractors = nn.ModuleList(feature_extractors)
        self.heads = nn.ModuleList(nn.Linear(feature_dim, num_classes) for _ in feature_extractors)
        self.num_classes, self.feature_dim, self.members = num_classes, feature_dim, len(feature_extractors)
        self.mirror = mirror

    def extractors(self) -> list[nn.Module]:
        """Return Φ_1 … Φ_N."""
        return list(self.feature_extractors)

    def features(self, x: Tensor) -> Tensor:
        """Return Φ_n(x) of every member, `[members, batch, d]`, for a batch `[batch, ...]`."""
        check_inputs(x)
        views = mirror_views(x, self.members) if self.mirror and not self.training else [x] * self.members
        pairs = zip(self.feature_extractors, views, strict=True)
        return torch.stack([checked_features(extractor(view), self.feature_dim) for extractor, view in pairs])

    def evidence(self, features: Tensor) -> Tensor:
        """Return the logits, `[members, batch, classes]`."""
        return torch.stack([head(member) for head, member in zip(self.heads, features, strict=True)])


@dataclass(frozen=True)
class DeepEnsembleObjective(SoftmaxObjective):
    """Cross-entropy, averaged over the batch and *summed* over members: each gets the gradient that it would get alone.

    So training side by side equals training one after the other on the same batches, unless the optimiser mixes members, as
    clipping the norm of the whole gradient does.

    >>> from besnn.model import two_moons_mlp
    >>> model = DeepEnsemble([two_moons_mlp(), two_moons_mlp()], num_classes=2, feature_dim=32)
    >>> list(DeepEnsembleObjective()(model, torch.rand(16, 2), torch.arange(16) % 2))
    ['classification']
    """

    def classification(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of logits `[members, batch, classes]`, a scalar."""
        return cross_entropy(logits, labels, self.label_smoothing).sum()


class DeepEnsembleConfig(EnsembleConfig):
    """A deep ensemble of softmax networks."""

    takes_trunk: ClassVar[bool] = False  # all networks would start from the same weights
    name: Literal["deep-ensemble"] = "deep-ensemble"
    label_smoothing: Smoothing = 0.0

    def build(self, make_backbone: MakeBackbone, num_classes: int, feature_dim: int) -> tuple[OODClassifier, Objective]:
        """Build the model and its objective."""
        backbones = [make_backbone() for _ in range(self.members)]
        model = DeepEnsemble(backbones, num_classes, feature_dim, mirror=self.mirror)
        return model, DeepEnsembleObjective(self.label_smoothing)
