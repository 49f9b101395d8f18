"""The Gaussian classifier, trained with the large-margin Gaussian mixture loss (L-GM, Wan et al. 2018)."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from besnn.baselines.method import MakeBackbone, SingleNetwork, SingleNetworkConfig
from besnn.checks import check_choice, check_labels, check_weights
from besnn.model import EvidenceKind, Objective, OODClassifier
from besnn.objective import active_terms
from besnn.settings import Weight

Covariance = Literal["identity", "diagonal"]


class GaussianClassifier(SingleNetwork):
    """A classifier by the likelihood of features under one Gaussian per class, N(μ_c, Λ_c), with equal priors.

    The mean of all log variances is fixed at 0. This loses nothing, as Φ and the means can scale instead. If it were free,
    features, means and variances could shrink together, which lowers the likelihood term without bound until training diverges.
    The covariance Λ_c is the `"identity"`, or `"diagonal"` and learned.

    >>> from besnn.model import two_moons_mlp
    >>> model = GaussianClassifier(two_moons_mlp(), num_classes=2, feature_dim=32)
    >>> list(model(torch.rand(5, 2)).shape)
    [1, 5, 2]
    """

    method: ClassVar[str] = "gaussian"
    default_score: ClassVar[str] = "negative-log-likelihood"
    evidence_kind: ClassVar[EvidenceKind] = "log-likelihoods"
    log_scales: nn.Parameter | None

    def __init__(
        self, feature_extractor: nn.Module, num_classes: int, feature_dim: int, covariance: Covariance = "diagonal"
    ) -> None:
        super().__init__(feature_extractor, num_classes, feature_dim)
        check_choice("covariance", covariance, ("identity", "diagonal"))
        self.mean = nn.Parameter(torch.randn(num_classes, feature_dim) / math.sqrt(feature_dim))
        diagonal = covariance == "diagonal"
        self.log_scales = nn.Parameter(torch.zeros(num_classes, feature_dim)) if diagonal else None

    def log_variances(self) -> Tensor:
        """Return the logarithm of Λ's diagonal, `[classes, d]`."""
        return torch.zeros_like(self.mean) if self.log_scales is None else self.log_scales - self.log_scales.mean()

    def distances(self, features: Tensor) -> Tensor:
        """Compute squared Mahalanobis distances (φ − μ_c)ᵀ Λ_c⁻¹ (φ − μ_c), `[1, batch, classes]`."""
        differences = features.unsqueeze(2) - self.mean
        return (differences.square() * torch.exp(-self.log_variances())).sum(dim=-1)

    def log_determinants(self) -> Tensor:
        """Return the log determinants of the covariances, log |Λ_c|, `[classes]`."""
        return self.log_variances().sum(dim=-1)

    def evidence(self, features: Tensor) -> Tensor:
        """Return the log-likelihoods log N(φ; μ_c, Λ_c), `[1, batch, classes]`."""
        constant = self.feature_dim * math.log(2 * math.pi)
        return -(self.distances(features) + self.log_determinants() + constant) / 2


def large_margin_logits(distances: Tensor, log_determinants: Tensor, labels: Tensor, margin: float) -> Tensor:
    """Compute log-likelihoods up to a constant, with a margin for the true class: −½ d_k (1 + α 1[k = y]) − ½ log |Λ_k|.

    With equal determinants, an input is classified correctly if it is nearer to its own class than to any other by the
    factor 1 + α. Distances and results are `[members, batch, classes]`.

    >>> large_margin_logits(torch.tensor([[[2.0, 4.0]]]), torch.zeros(2), torch.tensor([0]), margin=0.5)
    tensor([[[-1.5000, -2.0000]]])
    """
    is_label = labels[:, None] == torch.arange(distances.shape[-1], device=labels.device)
    return -(torch.where(is_label, (1 + margin) * distances, distances) + log_determinants) / 2


@dataclass(frozen=True)
class GaussianObjective:
    """The L-GM loss: cross-entropy with a margin α, and λ times the negative log-likelihood of the true class.

    >>> from besnn.model import two_moons_mlp
    >>> model = GaussianClassifier(two_moons_mlp(), num_classes=2, feature_dim=32)
    >>> list(GaussianObjective()(model, torch.rand(16, 2), torch.arange(16) % 2))
    ['classification', 'likelihood']
    """

    margin: float = 0.1
    likelihood_weight: float = 0.1

    def __post_init__(self) -> None:
        check_weights(margin=self.margin, likelihood_weight=self.likelihood_weight)

    def __call__(
        self, model: GaussianClassifier, x: Tensor, labels: Tensor, factors: Mapping[str, float] | None = None
    ) -> dict[str, Tensor]:
        """Return the weighted terms `classification` and `likelihood`, each a scalar.

        As in the paper, the likelihood ½ d_y + ½ log |Λ_y| omits its constant ½ d log 2π.
        """
        weights = active_terms({"classification": 1.0, "likelihood": self.likelihood_weight}, factors)
        check_labels(labels, num_classes=model.num_classes, batch=x.shape[0])
        distances, log_determinants = model.distances(model.features(x)), model.log_determinants()
        terms = {}
        if "classification" in weights:
            logits = large_margin_logits(distances, log_determinants, labels, self.margin)
            terms["classification"] = F.cross_entropy(logits.squeeze(0), labels)
        if "likelihood" in weights:
            true_distances = distances.squeeze(0).gather(1, labels[:, None]).squeeze(1)
            terms["likelihood"] = (true_distances + log_determinants[labels]).mean() / 2
        return {name: weights[name] * term for name, term in terms.items()}


class GaussianConfig(SingleNetworkConfig):
    """The Gaussian classifier with the L-GM loss."""

    terms: ClassVar[tuple[str, ...]] = ("classification", "likelihood")
    name: Literal["gaussian"] = "gaussian"
    covariance: Covariance = Field("diagonal", description="of each class's Gaussian")
    margin: Weight = Field(0.1, description="α, the margin by which the true class must win in training")
    likelihood_weight: Weight = Field(0.1, description="λ, of the likelihood term")

    def build(self, make_backbone: MakeBackbone, num_classes: int, feature_dim: int) -> tuple[OODClassifier, Objective]:
        """Build the model and its objective."""
        model = GaussianClassifier(make_backbone(), num_classes, feature_dim, self.covariance)
        return model, GaussianObjective(self.margin, self.likelihood_weight)  # type: ignore[return-value]  # for its own model
