"""What a BE-SNN minimises: classification + λ1 Σ_c R_c + λ2 GP, for each member, averaged over members."""

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass

from torch import Tensor

from besnn.checks import check_choice, check_inputs, check_weights
from besnn.errors import InputError
from besnn.model import BESNN
from besnn.objective.batches import rows_and_labels
from besnn.objective.entropy import Estimator, check_estimator
from besnn.objective.gradient import TwiceDifferentiable, gradient_penalty
from besnn.objective.kernel import OverClasses, kernel_cross_entropy, summed_kernel
from besnn.objective.regulariser import entropy_regulariser


@dataclass(frozen=True)
class BESNNObjective:
    """The paper's loss of a BE-SNN, as named terms that sum to it.

    Attributes:
        entropy_weight: λ1.
        gradient_weight: λ2.
        over_classes: whether the classification loss sums or averages over classes.
        k: which neighbour the entropy estimates use.
        estimator: the entropy estimator, `"kl"` or `"kpn"`.
        squared_norm: penalise the squared norm of the gradient (the paper) or the norm (DUQ's published code).
        match_counts: compare entropies of equally many points, see `entropy_regulariser`.
        entropy_per_dimension: measure entropies in nats per dimension, see `entropy_regulariser`.
        samples: class features drawn a class at each call; the model's own number if None.
        label_smoothing: of the classification loss, see `kernel_cross_entropy`.
        own_inputs: deal the batch out to the members (`besnn.objective.rows`) instead of showing all of it to each.
            Classification and penalty estimate the same loss, from N times as many inputs for the same work; entropies are
            those of N times fewer points.

    >>> import torch
    >>> from besnn.layers import BatchEnsembleLinear
    >>> model = BESNN(BatchEnsembleLinear(2, 8, members=4), num_classes=2, feature_dim=8, members=4, noise_dim=8, hidden_dim=8)
    >>> terms = BESNNObjective()(model, torch.randn(16, 2), torch.arange(16) % 2)
    >>> sum(terms.values()).backward()
    >>> list(terms)
    ['classification', 'entropy', 'gradient']
    """

    entropy_weight: float = 1.0
    gradient_weight: float = 0.5
    over_classes: OverClasses = "sum"
    k: int = 3
    estimator: Estimator = "kl"
    squared_norm: bool = True
    match_counts: bool = False
    entropy_per_dimension: bool = True
    samples: int | None = None
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
        """The weighted terms, each a scalar: the mean over members of `per_member`."""
        return {name: term.mean() for name, term in self.per_member(model, x, labels, factors).items()}

    def per_member(
        self, model: BESNN, x: Tensor, labels: Tensor, factors: Mapping[str, float] | None = None
    ) -> dict[str, Tensor]:
        """The weighted terms of each member.

        Args:
            model: the BE-SNN.
            x: inputs `[batch, ...]`, not tiled.
            labels: integers `[batch]`.
            factors: what multiplies a term, by its name; 1 where absent. A term of factor or weight 0 is neither computed nor
                returned.

        Returns:
            `[members]` each: `classification`, `entropy`, `gradient`.
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


def active_terms(weights: Mapping[str, float], factors: Mapping[str, float] | None) -> dict[str, float]:
    """Return weight times factor of each term that is not switched off.

    Args:
        weights: the weight of each term of the objective, by name.
        factors: multiply terms at this step; 1 unless given.

    Returns:
        The terms to compute, with their weights.

    >>> active_terms({"classification": 1.0, "gradient": 0.5}, factors={"gradient": 4.0})
    {'classification': 1.0, 'gradient': 2.0}
    >>> active_terms({"classification": 1.0, "gradient": 0.5}, factors={"gradient": 0.0})
    {'classification': 1.0}
    """
    factors = factors or {}
    for name in factors:
        check_choice("factor", name, tuple(weights))
    weighted = {name: weight * factors.get(name, 1.0) for name, weight in weights.items()}
    return {name: weight for name, weight in weighted.items() if weight}
