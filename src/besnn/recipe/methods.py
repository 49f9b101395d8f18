"""The registry of methods, and the settings of BE-SNN itself."""

from dataclasses import fields
from typing import ClassVar, Literal

from pydantic import Field, PositiveFloat, PositiveInt, ValidationError
from pydantic_core import PydanticCustomError

from besnn.baselines import EnsembleConfig, MethodConfig
from besnn.baselines.batch_ensemble import BatchEnsembleConfig
from besnn.baselines.deep_ensemble import DeepEnsembleConfig
from besnn.baselines.duq import DUQConfig
from besnn.baselines.gaussian import GaussianConfig
from besnn.baselines.method import FastWeights, MakeBackbone, Norm, OverClasses, OwnInputs, Smoothing, SquaredNorm
from besnn.baselines.softmax import SoftmaxConfig
from besnn.layers import initialiser
from besnn.model import BESNN, Objective, OODClassifier
from besnn.objective import BESNNObjective
from besnn.settings import Weight


class BESNNConfig(EnsembleConfig):
    """BE-SNN and its objective; the defaults are the paper's values where it states them."""

    terms: ClassVar[tuple[str, ...]] = ("classification", "entropy", "gradient")
    name: Literal["be-snn"] = "be-snn"
    noise_dim: PositiveInt = Field(512, description="length of the class-feature generator's noise")
    hidden_dim: PositiveInt = Field(512, description="width of the generator's hidden layer")
    samples: PositiveInt = Field(64, description="M, the class features drawn per class at each step")
    class_scale: PositiveFloat = Field(10.0, description="value of the one in the generator's one-hot class")
    length_scale: PositiveFloat = Field(1.0, description="ℓ, which divides features before distances are computed")
    sphere: bool = Field(False, description="compare directions: features and class features of length 1")
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

    def build(self, make_backbone: MakeBackbone, num_classes: int, feature_dim: int) -> tuple[OODClassifier, Objective]:
        """Build the model and its objective."""
        own = {"members", "noise_dim", "hidden_dim", "samples", "class_scale", "length_scale", "sphere", "norm", "mirror"}
        fast = initialiser(self.fast_weights)
        model = BESNN(make_backbone(), num_classes, feature_dim, init=fast, **self.model_dump(include=own))
        objective = BESNNObjective(**self.model_dump(include={field.name for field in fields(BESNNObjective)} - own))
        return model, objective  # type: ignore[return-value]  # an objective for its own kind of model


METHODS: dict[str, type[MethodConfig]] = {
    "be-snn": BESNNConfig,
    "softmax": SoftmaxConfig,
    "duq": DUQConfig,
    "gaussian": GaussianConfig,
    "deep-ensemble": DeepEnsembleConfig,
    "batch-ensemble": BatchEnsembleConfig,
}
"""The settings class of each method, by the name that recipes use; enter your own here. See `besnn.baselines.MethodConfig`."""


def method_class(section: object) -> type[MethodConfig]:
    """Return the settings class for a recipe's `method`: a name, or a mapping, which is BE-SNN's without a name."""
    name = section.get("name", "be-snn") if isinstance(section, dict) else section
    if not isinstance(name, str) or name not in METHODS:
        unknown = PydanticCustomError("unknown_method", "use one of {names}", {"names": ", ".join(METHODS)})
        raise ValidationError.from_exception_data("method", [{"type": unknown, "loc": ("name",), "input": name}])
    return METHODS[name]
