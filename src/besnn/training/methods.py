"""The settings of each method, and how its model and objective are built from them."""

from collections.abc import Callable
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, Field, PositiveFloat, PositiveInt
from torch import nn

from besnn.baselines import (
    DUQ,
    BatchEnsembleClassifier,
    DeepEnsemble,
    DeepEnsembleObjective,
    DUQObjective,
    GaussianClassifier,
    GaussianObjective,
    SoftmaxClassifier,
    SoftmaxObjective,
)
from besnn.layers import initialiser
from besnn.model import BESNN, Objective, OODClassifier
from besnn.objective import BESNNObjective
from besnn.training.section import Fraction, Members, Section, Weight

Backbone = Callable[[], nn.Module]
"""Makes a fresh feature extractor at each call."""


def _check_initialiser(name: str) -> str:
    initialiser(name)
    return name


FastWeights = Annotated[str, AfterValidator(_check_initialiser)]
"""How fast weights start, see `besnn.layers.initialiser`."""


class SingleNetworkConfig(Section):
    """What methods of one network have in common."""

    @property
    def members(self) -> int:
        """One network."""
        return 1


class BESNNConfig(Section):
    """BE-SNN and its objective; the paper's values where it gives them."""

    terms: ClassVar[tuple[str, ...]] = ("classification", "entropy", "gradient")
    name: Literal["be-snn"] = "be-snn"
    members: Members = 4
    noise_dim: PositiveInt = 512
    hidden_dim: PositiveInt = 512
    samples: PositiveInt = 64
    class_scale: PositiveFloat = 10.0
    norm: Literal["shared", "member"] = "shared"
    fast_weights: FastWeights = "normal:0.25"
    entropy_weight: Weight = 1.0
    gradient_weight: Weight = 0.5
    over_classes: Literal["sum", "mean"] = "sum"
    k: PositiveInt = 3
    estimator: Literal["kl", "kpn"] = "kl"
    squared_norm: bool = True
    match_counts: bool = False

    def build(self, backbone: Backbone, num_classes: int, feature_dim: int) -> tuple[OODClassifier, Objective]:
        """The model and what it minimises."""
        model = BESNN(
            backbone(),
            num_classes,
            feature_dim,
            members=self.members,
            noise_dim=self.noise_dim,
            hidden_dim=self.hidden_dim,
            samples=self.samples,
            class_scale=self.class_scale,
            norm=self.norm,
            init=initialiser(self.fast_weights),
        )
        objective = BESNNObjective(
            entropy_weight=self.entropy_weight,
            gradient_weight=self.gradient_weight,
            over_classes=self.over_classes,
            k=self.k,
            estimator=self.estimator,
            squared_norm=self.squared_norm,
            match_counts=self.match_counts,
        )
        return model, objective  # type: ignore[return-value]  # an objective for its own kind of model


class SoftmaxConfig(SingleNetworkConfig):
    """A softmax network."""

    terms: ClassVar[tuple[str, ...]] = ("classification",)
    name: Literal["softmax"]
    label_smoothing: Fraction = 0.0

    def build(self, backbone: Backbone, num_classes: int, feature_dim: int) -> tuple[OODClassifier, Objective]:
        """The model and what it minimises."""
        return SoftmaxClassifier(backbone(), num_classes, feature_dim), SoftmaxObjective(self.label_smoothing)


class DUQConfig(SingleNetworkConfig):
    """DUQ; its published code's values."""

    terms: ClassVar[tuple[str, ...]] = ("classification", "gradient")
    name: Literal["duq"]
    embedding_dim: PositiveInt = 256
    length_scale: PositiveFloat = 0.1
    momentum: Fraction = 0.999
    projection_std: PositiveFloat = 0.05
    gradient_weight: Weight = 0.05
    over_classes: Literal["sum", "mean"] = "mean"
    squared_norm: bool = False

    def build(self, backbone: Backbone, num_classes: int, feature_dim: int) -> tuple[OODClassifier, Objective]:
        """The model and what it minimises."""
        model = DUQ(
            backbone(), num_classes, feature_dim, self.embedding_dim, self.length_scale, self.momentum, self.projection_std
        )
        return model, DUQObjective(self.gradient_weight, self.over_classes, self.squared_norm)


class GaussianConfig(SingleNetworkConfig):
    """The Gaussian classifier with the L-GM loss."""

    terms: ClassVar[tuple[str, ...]] = ("classification", "likelihood")
    name: Literal["gaussian"]
    covariance: Literal["identity", "diagonal"] = "diagonal"
    margin: Weight = 0.1
    likelihood_weight: Weight = 0.1

    def build(self, backbone: Backbone, num_classes: int, feature_dim: int) -> tuple[OODClassifier, Objective]:
        """The model and what it minimises."""
        model = GaussianClassifier(backbone(), num_classes, feature_dim, self.covariance)
        return model, GaussianObjective(self.margin, self.likelihood_weight)  # type: ignore[return-value]  # for its own model


class DeepEnsembleConfig(Section):
    """A deep ensemble of softmax networks."""

    terms: ClassVar[tuple[str, ...]] = ("classification",)
    name: Literal["deep-ensemble"]
    members: Members = 4
    label_smoothing: Fraction = 0.0

    def build(self, backbone: Backbone, num_classes: int, feature_dim: int) -> tuple[OODClassifier, Objective]:
        """The model and what it minimises."""
        model = DeepEnsemble([backbone() for _ in range(self.members)], num_classes, feature_dim)
        return model, DeepEnsembleObjective(self.label_smoothing)


class BatchEnsembleConfig(Section):
    """A BatchEnsemble of softmax networks."""

    terms: ClassVar[tuple[str, ...]] = ("classification",)
    name: Literal["batch-ensemble"]
    members: Members = 4
    norm: Literal["shared", "member"] = "shared"
    fast_weights: FastWeights = "normal:0.25"
    label_smoothing: Fraction = 0.0

    def build(self, backbone: Backbone, num_classes: int, feature_dim: int) -> tuple[OODClassifier, Objective]:
        """The model and what it minimises."""
        fast = initialiser(self.fast_weights)
        model = BatchEnsembleClassifier(backbone(), num_classes, feature_dim, self.members, self.norm, fast)
        return model, SoftmaxObjective(self.label_smoothing)


MethodConfig = Annotated[
    BESNNConfig | SoftmaxConfig | DUQConfig | GaussianConfig | DeepEnsembleConfig | BatchEnsembleConfig,
    Field(discriminator="name"),
]
