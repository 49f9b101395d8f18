"""The loss of a BE-SNN: classification + λ1 Σ_c R_c + λ2 GP per member, averaged over members.

R_c is the entropy regulariser: the generated features of a class must be as spread as the data's features of that class.
"""

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from besnn.checks import check_choice, check_inputs, check_labels, check_weights
from besnn.errors import InputError
from besnn.model import BESNN
from besnn.objective.batches import gather_rows, rows_and_labels
from besnn.objective.entropy import Estimator, check_estimator, grouped_entropy
from besnn.objective.gradient import TwiceDifferentiable, gradient_penalty
from besnn.objective.kernel import OverClasses, kernel_cross_entropy, summed_kernel


@dataclass(frozen=True)
class BESNNObjective:
    """The paper's loss of a BE-SNN, as named terms that sum to it.

    See `kernel_cross_entropy`, `entropy_regulariser` and `gradient_penalty` for the settings of each term. With `own_inputs`,
    the batch is split among the members instead of giving all of it to each. Classification and penalty then estimate the same
    loss, from N times as many inputs for the same work; entropies are estimated from N times fewer points.

    >>> from besnn.layers import BatchEnsembleLinear
    >>> model = BESNN(BatchEnsembleLinear(2, 8, members=4), num_classes=2, feature_dim=8, members=4, noise_dim=8, hidden_dim=8)
    >>> terms = BESNNObjective()(model, torch.randn(16, 2), torch.arange(16) % 2)
    >>> sum(terms.values()).backward()
    >>> list(terms)
    ['classification', 'entropy', 'gradient']
    """

    entropy_weight: float = 1.0  # λ1
    gradient_weight: float = 0.5  # λ2
    over_classes: OverClasses = "sum"
    k: int = 3
    estimator: Estimator = "kl"
    squared_norm: bool = True
    match_counts: bool = False
    entropy_per_dimension: bool = True
    samples: int | None = None  # class features to draw per class at each call; the model's own number if None
    label_smoothing: float = 0.0
    own_inputs: bool = False

    def __post_init__(self) -> None:
        check_weights(entropy_weight=self.entropy_weight, gradient_weight=self.gradient_weight)
        check_choice("over_classes", self.over_classes, ("sum", "mean"))
        check_estimator(self.k, self.estimator)
        if self.samples is not None and self.samples <= self.k:
            raise InputError(f"samples={self.samples} are too few for k={self.k}: draw at least {self.k + 1} or lower k")

    def __call__(
        self, model: BESNN, x: Tensor, labels: Tensor, factors: Mapping[str, float] | None = None
    ) -> dict[str, Tensor]:
        """Return the weighted terms, each a scalar: the mean over members of `per_member`."""
        return {name: term.mean() for name, term in self.per_member(model, x, labels, factors).items()}

    def per_member(
        self, model: BESNN, x: Tensor, labels: Tensor, factors: Mapping[str, float] | None = None
    ) -> dict[str, Tensor]:
        """Return the weighted terms of each member, `[members]` each: `classification`, `entropy`, `gradient`.

        `factors` multiply terms, by name. A term of factor or weight 0 is neither computed nor returned.
        """
        check_inputs(x)
        weights = active_terms(
            {"classification": 1.0, "entropy": self.entropy_weight, "gradient": self.gradient_weight}, factors
        )
        rows, labels = rows_and_labels(x, labels, model.members, self.own_inputs)
        if "gradient" in weights:
            rows.requires_grad_()  # on the copy, so that each member's gradient is its own
        with TwiceDifferentiable() if "gradient" in weights else nullcontext():
            features = model.feature_rows(rows)
        class_features = model.class_features(self.samples)
        distances = model.distances_to(features, class_features)
        terms = {}
        if "classification" in weights:
            loss = kernel_cross_entropy(distances, labels, self.over_classes, "none", self.label_smoothing)
            terms["classification"] = loss.mean(1)
        if "entropy" in weights:
            terms["entropy"] = entropy_regulariser(
                features, labels, class_features, self.k, self.estimator, self.match_counts, self.entropy_per_dimension
            )
        if "gradient" in weights:
            kernel = summed_kernel(distances)
            terms["gradient"] = gradient_penalty(kernel, rows, self.squared_norm, reduction="none").mean(1)
        return {name: weights[name] * term for name, term in terms.items()}


def entropy_regulariser(
    features: Tensor,
    labels: Tensor,
    class_features: Tensor,
    k: int = 3,
    estimator: Estimator = "kl",
    match_counts: bool = False,
    per_dimension: bool = True,
) -> Tensor:
    """Compute Σ_c max(0, Ĥ(Φ(x) | y = c) − Ĥ(E_c)) / d, over the classes of which the batch holds more than k inputs.

    The data's entropy is a threshold: no gradient passes to `features`. If processes share a batch, each uses the entropy of
    the whole batch, since the bias of an estimate depends on the number of points.

    Args:
        features: Φ(x), `[members, batch, d]`.
        labels: y, integers `[batch]`, or `[members, batch]` for members with inputs of their own.
        class_features: E, `[members, classes, samples, d]`, samples > k.
        k: the neighbour that the entropy estimates use.
        estimator: `"kl"` or `"kpn"`, see `knn_entropy`.
        match_counts: estimate both entropies of a class from equally many points: the estimators' bias depends on the count,
            and equal biases cancel in the difference.
        per_dimension: measure entropies in nats per dimension. In nats they grow with d, and a weight of 1 that suits two
            dimensions dominates the classification loss in hundreds.

    Returns:
        `[members]`.

    >>> features, labels = torch.randn(1, 100, 2), torch.zeros(100, dtype=torch.int64)
    >>> narrow, wide = torch.randn(1, 1, 64, 2) / 100, torch.randn(1, 1, 64, 2) * 100
    >>> entropy_regulariser(features, labels, narrow).item() > 1, entropy_regulariser(features, labels, wide).item()
    (True, 0.0)
    """
    check_estimator(k, estimator)
    _check_shapes(features, class_features, k)
    classes, samples = class_features.shape[1:3]
    check_labels(labels, num_classes=classes, batch=features.shape[1], members=features.shape[0])
    features, labels = gather_rows(features, dim=1), gather_rows(labels, dim=-1)
    sample_groups = torch.zeros(samples, dtype=torch.int64, device=labels.device)
    if match_counts:
        labels, sample_groups = _match_counts(labels, classes, samples)
    threshold, valid = grouped_entropy(features, labels, classes, k, estimator)
    entropy, _ = grouped_entropy(class_features, sample_groups, 1, k, estimator)
    shortfall = torch.where(valid, (threshold - entropy[..., 0]).relu(), 0.0).sum(-1)
    return shortfall / features.shape[-1] if per_dimension else shortfall


def _match_counts(labels: Tensor, classes: int, samples: int) -> tuple[Tensor, Tensor]:
    """Return groups, −1 for ignored points, in which class c has min(its count in the batch, samples) points on both sides.

    The groups are those of the data, as `labels`, and of the class features, `[..., classes, samples]`.
    """
    belongs = labels[..., None] == torch.arange(classes, device=labels.device)
    rank = torch.where(belongs, belongs.cumsum(-2) - 1, 0).sum(-1)
    sample = torch.arange(samples, device=labels.device)
    return torch.where(rank < samples, labels, -1), torch.where(sample < belongs.sum(-2)[..., None], 0, -1)


def _check_shapes(features: Tensor, class_features: Tensor, k: int) -> None:
    given = f"features {list(features.shape)} and class features {list(class_features.shape)}"
    if features.ndim != 3 or class_features.ndim != 4:
        raise InputError(f"{given}: expected [members, batch, d] and [members, classes, samples, d]")
    if (features.shape[0], features.shape[-1]) != (class_features.shape[0], class_features.shape[-1]):
        raise InputError(f"{given} differ in members or dimensions: take both from one model")
    if (samples := class_features.shape[2]) <= k:
        raise InputError(f"samples={samples} class features are too few for k={k}: draw at least {k + 1} or lower k")


def active_terms(weights: Mapping[str, float], factors: Mapping[str, float] | None) -> dict[str, float]:
    """Return weight times factor (1 unless given) of each term that is not switched off.

    >>> active_terms({"classification": 1.0, "entropy": 1.0, "gradient": 0.5}, factors={"entropy": 0.0, "gradient": 4.0})
    {'classification': 1.0, 'gradient': 2.0}
    """
    factors = factors or {}
    for name in factors:
        check_choice("factor", name, tuple(weights))
    weighted = {name: weight * factors.get(name, 1.0) for name, weight in weights.items()}
    return {name: weight for name, weight in weighted.items() if weight}
