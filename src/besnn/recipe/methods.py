"""The settings of each method, and how its model and objective are built from them."""

from collections.abc import Callable
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, Field, PositiveFloat, PositiveInt
from torch import nn

from besnn.baselines import (
    DUQ,
    BatchEnsembleClassifier,
    BatchEnsembleObjective,
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
from besnn.recipe.section import Fraction, Members, Section, Weight

Backbone = Callable[[], nn.Module]
"""Makes a fresh feature extractor at each call."""


def _check_initialiser(name: str) -> str:
    initialiser(name)
    return name


FastWeights = Annotated[
    str,
    AfterValidator(_check_initialiser),
    Field(description="how they start: `normal:STD` around 1, `sign:PROBABILITY` of +1, or `ones`"),
]
Norm = Annotated[Literal["shared", "member"], Field(description="BatchNorm shared by the members, or one for each")]
OverClasses = Annotated[Literal["sum", "mean"], Field(description="how the classification loss adds up over classes")]
SquaredNorm = Annotated[bool, Field(description="penalise the gradient's squared norm, not the norm")]
OwnInputs = Annotated[bool, Field(description="deal a batch out to the members instead of showing all of it to each")]
Mirror = Annotated[
    bool,
    Field(description="once trained, show every second member mirror images, left to right; needs `training.augment.flip`"),
]
Smoothing = Annotated[float, Field(ge=0, lt=1, description="share of a label's weight that goes to all classes alike")]


class SingleNetworkConfig(Section):
    """What methods of one network have in common."""

    @property
    def members(self) -> int:
        """One network."""
        return 1

    @property
    def mirror(self) -> bool:
        """Nobody is there to look at the mirror image."""
        return False


class BESNNConfig(Section):
    """BE-SNN and its objective; the paper's values where it gives them."""

    terms: ClassVar[tuple[str, ...]] = ("classification", "entropy", "gradient")
    name: Literal["be-snn"] = "be-snn"
    members: Members = 4
    noise_dim: PositiveInt = Field(512, description="length of the class-feature generator's noise")
    hidden_dim: PositiveInt = Field(512, description="width of the generator's hidden layer")
    samples: PositiveInt = Field(64, description="M, class features drawn a class at each step")
    class_scale: PositiveFloat = Field(10.0, description="what stands for the one in the generator's one-hot class")
    length_scale: PositiveFloat = Field(1.0, description="ℓ, what features are divided by before distances are taken")
    norm: Norm = "shared"
    fast_weights: FastWeights = "normal:0.25"
    entropy_weight: Weight = Field(1.0, description="λ1, of the entropy regulariser")
    gradient_weight: Weight = Field(0.5, description="λ2, of the gradient penalty")
    over_classes: OverClasses = "sum"
    k: PositiveInt = Field(3, description="which neighbour the entropy estimates use")
    estimator: Literal["kl", "kpn"] = Field("kl", description="of entropy: Kozachenko-Leonenko, or Lombardi and Pant's")
    squared_norm: SquaredNorm = True
    match_counts: bool = Field(False, description="estimate both entropies of a class from equally many points")
    entropy_per_dimension: bool = Field(True, description="measure entropies in nats per dimension, not in nats")
    label_smoothing: Smoothing = 0.0
    own_inputs: OwnInputs = False
    mirror: Mirror = False

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
            length_scale=self.length_scale,
            norm=self.norm,
            init=initialiser(self.fast_weights),
            mirror=self.mirror,
        )
        objective = BESNNObjective(
            entropy_weight=self.entropy_weight,
            gradient_weight=self.gradient_weight,
            over_classes=self.over_classes,
            k=self.k,
            estimator=self.estimator,
            squared_norm=self.squared_norm,
            match_counts=self.match_counts,
            entropy_per_dimension=self.entropy_per_dimension,
            label_smoothing=self.label_smoothing,
            own_inputs=self.own_inputs,
        )
        return model, objective  # type: ignore[return-value]  # an objective for its own kind of model


class SoftmaxConfig(SingleNetworkConfig):
    """A softmax network."""

    terms: ClassVar[tuple[str, ...]] = ("classification",)
    name: Literal["softmax"]
    label_smoothing: Smoothing = 0.0

    def build(self, backbone: Backbone, num_classes: int, feature_dim: int) -> tuple[OODClassifier, Objective]:
        """The model and what it minimises."""
        return SoftmaxClassifier(backbone(), num_classes, feature_dim), SoftmaxObjective(self.label_smoothing)


class DUQConfig(SingleNetworkConfig):
    """DUQ; its published code's values."""

    terms: ClassVar[tuple[str, ...]] = ("classification", "gradient")
    name: Literal["duq"]
    embedding_dim: PositiveInt = Field(256, description="length of the embedding in which classes have centroids")
    length_scale: PositiveFloat = Field(0.1, description="σ of the kernel")
    momentum: Fraction = Field(0.999, description="of the centroids' running means")
    projection_std: PositiveFloat = Field(0.05, description="spread of the embedding's first weights")
    gradient_weight: Weight = Field(0.05, description="λ, of the gradient penalty")
    over_classes: OverClasses = "mean"
    squared_norm: SquaredNorm = False

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
    covariance: Literal["identity", "diagonal"] = Field("diagonal", description="of each class's Gaussian")
    margin: Weight = Field(0.1, description="by how much the right class must win in training")
    likelihood_weight: Weight = Field(0.1, description="λ, of the likelihood term")

    def build(self, backbone: Backbone, num_classes: int, feature_dim: int) -> tuple[OODClassifier, Objective]:
        """The model and what it minimises."""
        model = GaussianClassifier(backbone(), num_classes, feature_dim, self.covariance)
        return model, GaussianObjective(self.margin, self.likelihood_weight)  # type: ignore[return-value]  # for its own model


class DeepEnsembleConfig(Section):
    """A deep ensemble of softmax networks."""

    terms: ClassVar[tuple[str, ...]] = ("classification",)
    name: Literal["deep-ensemble"]
    members: Members = 4
    label_smoothing: Smoothing = 0.0
    mirror: Mirror = False

    def build(self, backbone: Backbone, num_classes: int, feature_dim: int) -> tuple[OODClassifier, Objective]:
        """The model and what it minimises."""
        model = DeepEnsemble([backbone() for _ in range(self.members)], num_classes, feature_dim, mirror=self.mirror)
        return model, DeepEnsembleObjective(self.label_smoothing)


class BatchEnsembleConfig(Section):
    """A BatchEnsemble of softmax networks."""

    terms: ClassVar[tuple[str, ...]] = ("classification",)
    name: Literal["batch-ensemble"]
    members: Members = 4
    norm: Norm = "shared"
    fast_weights: FastWeights = "normal:0.25"
    label_smoothing: Smoothing = 0.0
    own_inputs: OwnInputs = False
    mirror: Mirror = False

    def build(self, backbone: Backbone, num_classes: int, feature_dim: int) -> tuple[OODClassifier, Objective]:
        """The model and what it minimises."""
        fast = initialiser(self.fast_weights)
        model = BatchEnsembleClassifier(backbone(), num_classes, feature_dim, self.members, self.norm, fast, mirror=self.mirror)
        return model, BatchEnsembleObjective(self.label_smoothing, self.own_inputs)


MethodConfig = Annotated[
    BESNNConfig | SoftmaxConfig | DUQConfig | GaussianConfig | DeepEnsembleConfig | BatchEnsembleConfig,
    Field(discriminator="name"),
]
