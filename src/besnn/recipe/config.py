"""The sections of a recipe and their allowed values."""

from collections.abc import Callable
from functools import cache
from typing import Annotated, Any, Literal, Self

from pydantic import (
    Field,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    SerializeAsAny,
    create_model,
    field_validator,
    model_validator,
)
from pydantic.fields import FieldInfo

from besnn.baselines import MethodConfig
from besnn.detection import DENSITIES
from besnn.model import BACKBONES, Backbone
from besnn.model.feature_layers import layer_groups, layer_names
from besnn.recipe.methods import METHODS, BESNNConfig, method_class
from besnn.settings import Fraction, Section, Weight

METHOD, AUTO = "method", "auto"
"""Names that stand for a score: the method's own, and `combined` wherever it is possible."""


class ImageConfig(Section):
    """The form that all images are converted to."""

    size: tuple[PositiveInt, PositiveInt] | Literal["auto"] = Field(
        description="height and width in pixels; `auto`: 64×64 for a folder of images larger than 48 pixels, else 32×32"
    )
    channels: Literal[1, 3] = Field(description="1 for grey, 3 for RGB")


class DataConfig(Section):
    """The data to train on, and how much of it to hold out."""

    source: str = Field(description="a built-in name, or the path of a folder of images, an .npz, a .csv or a .parquet")
    label: str = Field("label", description="the column of a table that holds the classes")
    image: ImageConfig | None = Field(None, description="the form to convert images to; null: leave them as they are")
    classes: tuple[str, ...] | None = Field(None, description="train on these classes only")
    limit: PositiveInt | None = Field(None, description="use only this many rows, drawn at random")
    validation: Fraction = Field(0.1, description="share held out for early stopping and for fitting the score")
    calibration: Fraction = Field(0.1, description="share held out for setting the threshold")
    examples: NonNegativeInt = Field(
        1000, description="most training inputs that the model file keeps, to show the nearest ones to an input; 0: none"
    )

    @model_validator(mode="after")
    def _leave_something(self) -> Self:
        if self.validation + self.calibration >= 1:
            raise ValueError(f"validation={self.validation} and calibration={self.calibration} leave nothing to train on")
        return self


class BackboneConfig(Section):
    """The feature extractor. It also has the settings of all registered backbones; each backbone uses its own."""

    name: str = Field("auto", description=f"{', '.join(BACKBONES)}, or `auto`: an mlp for tables and a convnet for images")
    feature_dim: PositiveInt = Field(256, description="d, the number of features")
    weights: str | None = Field(
        None, description="a model file of `besnn train`; training starts from its trunk, the network without its head"
    )
    frozen: bool = Field(
        False, description="keep the trunk's weights: only its fast weights, norms and biases learn, and the layers after it"
    )

    @field_validator("name")
    @classmethod
    def _check_name(cls, name: str) -> str:
        if name not in ("auto", *BACKBONES):
            raise ValueError(f"{name!r} is unknown: use one of auto, {', '.join(BACKBONES)}")
        return name

    @model_validator(mode="after")
    def _check_frozen(self) -> Self:
        if self.frozen and self.weights is None:
            raise ValueError("backbone.frozen=true needs trained weights: name a model file in backbone.weights")
        return self


def backbone_class() -> type[BackboneConfig]:
    """Return the class that checks a recipe's `backbone`, with the settings of all backbones that are registered now.

    Backbones may share a setting; the first one decides its type and default.
    """
    return _backbone_class(tuple(BACKBONES.values()))


@cache  # recipes are equal only if their sections are of the same class
def _backbone_class(backbones: tuple[Backbone, ...]) -> type[BackboneConfig]:
    settings: dict[str, Any] = {}
    for backbone in backbones:
        for name, parameter in backbone.settings.items():
            if name not in settings:
                field = FieldInfo.from_annotated_attribute(parameter.annotation, parameter.default)
                users = [each.name for each in backbones if name in each.settings]
                field.description = ": ".join(filter(None, (", ".join(users), field.description)))
                settings[name] = field.annotation, field
    return create_model("BackboneConfig", __base__=BackboneConfig, __doc__=BackboneConfig.__doc__, **settings)


class OptimiserConfig(Section):
    """The optimiser. `weight_decay` applies to the (shared) weights of linear and convolution layers only."""

    name: Literal["sgd", "adamw"] = "sgd"
    learning_rate: PositiveFloat = Field(0.03, description="the highest of the run")
    momentum: Fraction = Field(0.9, description="Nesterov momentum of sgd")
    weight_decay: Weight = Field(5e-4, description="of the weights")
    fast_rate: PositiveFloat = Field(1.0, description="learning rate of the fast weights, relative to the others'")
    fast_decay: Weight = Field(0.0, description="weight decay of the fast weights")
    clip: Weight = Field(1.0, description="largest gradient norm; 0: no clipping")


class ScheduleConfig(Section):
    """The learning rate over the run."""

    name: Literal["cosine", "linear", "step", "constant"] = "cosine"
    warmup: Fraction = Field(0.0, description="share of the run over which the rate rises from zero")
    milestones: tuple[Fraction, ...] = Field(
        (0.5, 0.75), description="shares of the run after which `step` divides the rate by ten"
    )


class RampConfig(Section):
    """When a term of the objective is introduced: off before `start`, full weight from `end` on (shares of the run)."""

    start: Fraction = Field(0.0, description="share of the run before which the term is off")
    end: Fraction = Field(0.0, description="share of the run after which it has its full weight")


class AugmentConfig(Section):
    """Random augmentation of training images."""

    crop: NonNegativeInt | Literal["auto"] = Field(
        0, description="pixels of padding before a random crop; 0: no cropping; `auto`: an eighth of the shorter side"
    )
    flip: bool | Literal["auto"] = Field(
        False,
        description="mirror half of the images left to right; `auto`: if a simple classifier recognises mirror images as well",
    )
    cutout: NonNegativeInt = Field(0, description="side in pixels of a square to blank out; 0: no cutout")


class TrainingConfig(Section):
    """The training loop."""

    epochs: PositiveInt = Field(16, description="passes through the data")
    least_steps: NonNegativeInt = Field(0, description="for small data: more passes, if the epochs have fewer steps than this")
    batch_size: PositiveInt = Field(128, description="inputs per step")
    batch_rows: PositiveInt | None = Field(
        None, description="rows per step (members times inputs per member), instead of batch_size"
    )
    seed: NonNegativeInt = Field(0, description="same seed, same model")
    optimiser: OptimiserConfig = OptimiserConfig()
    schedule: ScheduleConfig = ScheduleConfig()
    ramps: dict[str, RampConfig] = Field(
        default_factory=dict, description="when a term of the objective is introduced, by the name of the term"
    )
    gradient_every: PositiveInt = Field(
        1, description="apply the gradient penalty at every k-th step only, with k times its weight"
    )
    augment: AugmentConfig = AugmentConfig()
    average_from: Fraction | None = Field(
        None, description="average the weights over the rest of the run, from this share of it on"
    )
    channels_last: bool = Field(
        False, description="lay images out with the channels of a pixel side by side: faster on a CPU, with other rounding"
    )
    patience: PositiveInt | None = Field(None, description="stop after this many epochs without a better validation loss")
    precision: Literal["fp32", "tf32", "bf16"] = Field("fp32", description="of matrix products; bf16 is mixed precision")

    @model_validator(mode="after")
    def _one_choice_of_weights(self) -> Self:
        if self.average_from is not None and self.patience is not None:
            raise ValueError("average_from keeps averaged weights and patience keeps the best ones: set only one of them")
        return self


class ScoreConfig(Section):
    """The score that decides, and the feature densities to choose from."""

    name: str = Field(
        "auto",
        description="`method`: the score of the method's paper; `combined`: that and the densities; `auto`: `combined`, "
        "or `method` without validation data",
    )
    densities: tuple[str, ...] = Field(
        ("nearest-neighbour",),
        min_length=1,
        description=f"feature densities to fit, for `auto` and `combined`: {', '.join(DENSITIES)}",
    )
    layer: str | None = Field(
        "trunk",
        description="the layer whose features densities are fitted to; if the network has no layer of that name, Φ's output. "
        "`trunk.3+trunk` scales the features of several layers to unit length and joins them, with maps averaged over a "
        "2 × 2 grid; `trunk.3,trunk` fits densities to each layer, and `combined` adds them up; "
        "`inputs` stands for the standardised inputs",
    )
    far: str | None = Field(
        None,
        description="layers, as for `layer`, whose densities join `combined` too, but count only where they exceed those of "
        "most known inputs; `pixels` stands for colour, contrast and edges of the image itself, by a Gaussian, and `method` "
        "for the score of the method's paper, which then counts only there as well",
    )
    neighbour: PositiveInt = Field(20, description="k of nearest-neighbour")
    stored_rows: PositiveInt = Field(10_000, description="how many training features nearest-neighbour keeps")

    @field_validator("densities")
    @classmethod
    def _check_densities(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        if unknown := [name for name in names if name not in DENSITIES]:
            raise ValueError(f"{unknown[0]!r} is unknown: use one of {', '.join(DENSITIES)}")
        return names

    @field_validator("layer", "far")
    @classmethod
    def _check_layers(cls, layer: str | None) -> str | None:
        layer_names(layer)
        return layer

    @model_validator(mode="after")
    def _check_far(self) -> Self:
        far = [layer for layer in map("+".join, layer_groups(self.far)) if layer != METHOD]
        if self.layer is not None and far:
            layer_names(",".join([self.layer, *far]))  # refuses layers that are named twice
        return self


class CalibrationConfig(Section):
    """What decisions promise."""

    alpha: float = Field(0.05, gt=0, lt=1, description="share of known inputs that may be flagged")
    delta: Annotated[float, Field(gt=0, lt=1)] | None = Field(
        None, description="keep alpha with probability 1 − delta over the calibration data, instead of on average"
    )
    per_class: bool = Field(False, description="keep all promises for the inputs of each predicted class")
    label_alpha: Annotated[float, Field(gt=0, lt=1)] | None = Field(
        None,
        description="share of accepted inputs whose label set may miss their class; null: 0.05 if the data are enough for it",
    )
    label_sets: Literal["least-ambiguous", "adaptive"] = Field(
        "least-ambiguous", description="the smallest label sets, or sets that are larger for harder inputs"
    )
    max_error: Annotated[float, Field(gt=0, lt=1)] | None = Field(
        None,
        description="largest share of wrong labels among inputs called known, with probability 1 − delta (0.1 unless given)",
    )


class Recipe(Section):
    """The description of one training run; its fields are the sections of a recipe file.

    >>> recipe = Recipe(name="mine", data={"source": "digits"}, training={"epochs": 5})
    >>> recipe.method.name, recipe.method.members, recipe.training.epochs
    ('be-snn', 4, 5)
    """

    name: str = Field(description="name of the recipe")
    data: DataConfig
    backbone: SerializeAsAny[BackboneConfig] = Field(default_factory=lambda: backbone_class()())
    method: SerializeAsAny[MethodConfig] = Field(
        BESNNConfig(), description="the method to train; its name decides which settings it has"
    )
    training: TrainingConfig = TrainingConfig()
    pretraining: TrainingConfig | None = Field(
        None,
        description="train the backbone in a plain softmax network first, with these settings and the seed and precision of "
        "`training`, and start from its trunk; null: no pretraining",
    )
    score: ScoreConfig = ScoreConfig()
    calibration: CalibrationConfig = CalibrationConfig()

    @field_validator("backbone", mode="before")
    @classmethod
    def _check_backbone(cls, backbone: object) -> object:
        return backbone_class().model_validate(backbone) if isinstance(backbone, dict) else backbone

    @field_validator("method", mode="before")
    @classmethod
    def _look_up_method(cls, method: object) -> object:
        """Check the settings by the class that is registered for the name; a name alone stands for the default settings."""
        if not isinstance(method, str | dict):
            return method
        return method_class(method).model_validate({} if isinstance(method, str) else method)

    @model_validator(mode="after")
    def _check_training(self) -> Self:
        _check_terms("training", self.training, type(self.method))
        for section, training in (("training", self.training), ("pretraining", self.pretraining)):
            if training is not None and training.patience is not None and not self.data.validation:
                raise ValueError(f"{section}.patience needs validation data: set data.validation above 0")
        if self.method.mirror and not self.training.augment.flip:
            raise ValueError("method.mirror=true, but training.augment.flip=false: set both or neither")
        return self

    @model_validator(mode="after")
    def _check_start(self) -> Self:
        starts = {"pretraining": self.pretraining, "backbone.weights": self.backbone.weights}
        given = [field for field, value in starts.items() if value is not None]
        if len(given) > 1:
            raise ValueError("pretraining and backbone.weights both say what to start from: set only one of them")
        if given and not self.method.takes_trunk:
            raise ValueError(f"{given[0]} would start all networks of a {self.method.name} alike: leave it out")
        if self.pretraining is not None:
            _check_terms("pretraining", self.pretraining, METHODS["softmax"])
        return self

    def plain(self) -> "Recipe":
        """Return the recipe of the plain softmax network that `pretraining` describes."""
        assert self.pretraining is not None
        training = self.pretraining.model_dump() | self.training.model_dump(include={"seed", "precision"})
        changes = {"method": "softmax", "training": training, "pretraining": None, "score": {"name": "method"}}
        return Recipe.model_validate({**self.model_dump(), **changes})

    def __reduce__(self) -> tuple[Callable[[Any], Self], tuple[dict[str, Any]]]:
        """Travel to other processes as plain values: the class of the backbone's settings is made at run time."""
        return type(self).model_validate, (self.model_dump(),)

    @property
    def batch_size(self) -> int:
        """Return the inputs per batch, a multiple of `shares`: `batch_size`, or as many as fit into `batch_rows`."""
        rows, shares = self.training.batch_rows, self.shares
        inputs = self.training.batch_size if rows is None else rows * shares // self.method.members
        return max(shares, inputs // shares * shares)

    @property
    def shares(self) -> int:
        """Return how many equal shares a batch is split into: N if each member has its own inputs, else 1."""
        return self.method.members if getattr(self.method, "own_inputs", False) else 1


def _check_terms(section: str, training: TrainingConfig, method: type[MethodConfig]) -> None:
    """Refuse settings for terms that a method's objective does not have; `section` is their place in the recipe."""
    name, terms = method.model_fields["name"].default, ", ".join(method.terms)
    if unknown := [name for name in training.ramps if name not in method.terms]:
        raise ValueError(f"{section}.ramps.{unknown[0]}: the objective of {name} has the terms {terms}")
    if training.gradient_every > 1 and "gradient" not in method.terms:
        field = f"{section}.gradient_every={training.gradient_every}"
        raise ValueError(f"{field}: the objective of {name} has no gradient penalty, only {terms}; leave the field out")
