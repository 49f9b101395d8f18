"""The parts of a recipe and their allowed values."""

from typing import Annotated, Literal, Self

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, field_validator, model_validator

from besnn.model.feature_layers import layer_names
from besnn.recipe.methods import BatchEnsembleConfig, BESNNConfig, MethodConfig, SoftmaxConfig
from besnn.recipe.section import Fraction, Section, Weight

METHOD, AUTO = "method", "auto"
"""Scores by what they are to do: the method's own, and the best on made-up outliers."""


class ImageConfig(Section):
    """What images of any size and format are turned into."""

    size: tuple[PositiveInt, PositiveInt] = Field(description="height and width in pixels")
    channels: Literal[1, 3] = Field(description="1 for grey, 3 for RGB")


class DataConfig(Section):
    """What to train on, and how much of it to hold out."""

    source: str = Field(description="a built-in name, or the path of a folder of images, an .npz, a .csv or a .parquet")
    label: str = Field("label", description="a table's column of classes")
    image: ImageConfig | None = Field(None, description="the form to bring images to; null: the one they have")
    classes: tuple[str, ...] | None = Field(None, description="train on these classes only")
    limit: PositiveInt | None = Field(None, description="use only this many rows, drawn at random")
    validation: Fraction = Field(0.1, description="share held out to stop early and to choose the score")
    calibration: Fraction = Field(0.1, description="share held out to set the threshold")

    @model_validator(mode="after")
    def _leave_something(self) -> Self:
        if self.validation + self.calibration >= 1:
            raise ValueError(f"validation={self.validation} and calibration={self.calibration} leave nothing to train on")
        return self


class BackboneConfig(Section):
    """The feature extractor."""

    name: Literal["auto", "mlp", "convnet", "fashion-convnet", "cifar-resnet18"] = Field(
        "auto", description="`auto` is an mlp for tables and a convnet for images"
    )
    feature_dim: PositiveInt = Field(256, description="d, the length of the features that classes are compared by")
    hidden: tuple[PositiveInt, ...] = Field(
        (128, 128), description="widths of an mlp's hidden layers, or of a convnet's blocks"
    )
    widths: tuple[PositiveInt, PositiveInt, PositiveInt] = Field(
        (64, 128, 128), description="of fashion-convnet's convolutions"
    )
    head_dim: PositiveInt | None = Field(
        256, description="width of the hidden layer behind them; null for none, and a ReLU on the features"
    )
    last_kernel: Literal[3, 5, 7] = Field(3, description="kernel size of the last of them")
    width: PositiveInt = Field(64, description="channels of cifar-resnet18's first stage; each further one doubles them")
    weights: str | None = Field(
        None, description="a model file of `besnn train` whose trunk, the network but its head, to start from"
    )
    frozen: bool = Field(
        False, description="keep the trunk's weights: its fast weights, norms and biases learn, and all behind it"
    )

    @model_validator(mode="after")
    def _freeze_what_was_trained(self) -> Self:
        if self.frozen and self.weights is None:
            raise ValueError("backbone.frozen=true keeps weights that nobody trained: name a model file in backbone.weights")
        return self


class OptimiserConfig(Section):
    """How weights move. `weight_decay` applies to the (shared) weights of linear and convolution layers only."""

    name: Literal["sgd", "adamw"] = "sgd"
    learning_rate: PositiveFloat = Field(0.03, description="the largest of the run")
    momentum: Fraction = Field(0.9, description="Nesterov's, of sgd")
    weight_decay: Weight = Field(5e-4, description="pull of the weights towards zero")
    fast_rate: PositiveFloat = Field(1.0, description="the fast weights' learning rate, as a factor")
    fast_decay: Weight = Field(0.0, description="pull of the fast weights towards zero")
    clip: Weight = Field(1.0, description="largest gradient norm; 0 for none")


class ScheduleConfig(Section):
    """How the learning rate goes over the run."""

    name: Literal["cosine", "linear", "step", "constant"] = "cosine"
    warmup: Fraction = Field(0.0, description="share of the run over which the rate rises from nothing")
    milestones: tuple[Fraction, ...] = Field(
        (0.5, 0.75), description="shares of the run after which `step` divides the rate by ten"
    )


class RampConfig(Section):
    """When a term of the objective comes in: off before `start`, full from `end` on (shares of the run)."""

    start: Fraction = Field(0.0, description="share of the run before which the term is off")
    end: Fraction = Field(0.0, description="share of the run from which on it has its full weight")


class AugmentConfig(Section):
    """Random changes to training images, made on the device."""

    crop: NonNegativeInt = Field(0, description="pixels of padding to crop from")
    flip: bool = Field(False, description="mirror half of the images, left to right")
    cutout: NonNegativeInt = Field(0, description="side in pixels of a square to blank out; 0 for none")


class TrainingConfig(Section):
    """How to train."""

    epochs: PositiveInt = Field(16, description="how often to go through the data")
    batch_size: PositiveInt = Field(128, description="inputs a step")
    batch_rows: PositiveInt | None = Field(
        None, description="rows a step, which is members times the inputs of each, in place of batch_size"
    )
    seed: NonNegativeInt = Field(0, description="same seed, same model")
    optimiser: OptimiserConfig = OptimiserConfig()
    schedule: ScheduleConfig = ScheduleConfig()
    ramps: dict[str, RampConfig] = Field(default_factory=dict, description="by the name of the objective's term")
    gradient_every: PositiveInt = Field(
        1, description="apply the gradient penalty at every k-th step only, with k times its weight"
    )
    augment: AugmentConfig = AugmentConfig()
    average_from: Fraction | None = Field(
        None, description="average the weights over the rest of the run, from this share of it on"
    )
    patience: PositiveInt | None = Field(None, description="stop after so many epochs without a better validation loss")
    precision: Literal["fp32", "tf32", "bf16"] = Field("fp32", description="of matrix products; bf16 mixes precisions")

    @model_validator(mode="after")
    def _one_choice_of_weights(self) -> Self:
        if self.average_from is not None and self.patience is not None:
            raise ValueError("average_from ends with averaged weights and patience with the best ones: set only one of them")
        return self


class ScoreConfig(Section):
    """The score to decide by, and the feature densities to choose among."""

    name: str = Field(
        "auto", description="`method` for the one of the method's paper; `auto` takes the best on made-up outliers"
    )
    densities: tuple[Literal["nearest-neighbour", "class-gaussian"], ...] = Field(
        ("nearest-neighbour",), min_length=1, description="fitted to training features, for `auto` and `combined`"
    )
    layer: str | None = Field(
        "trunk",
        description="the inner layer they look at; where there is none of that name, Φ's output. Several, as in "
        "`trunk.3+trunk`, are each scaled to unit length and joined, with maps averaged over a 2 × 2 grid; as in "
        "`trunk.3,trunk`, each has densities of its own, which `combined` adds up",
    )
    neighbour: PositiveInt = Field(20, description="k of nearest-neighbour")
    stored_rows: PositiveInt = Field(10_000, description="how many training features nearest-neighbour keeps")

    @field_validator("layer")
    @classmethod
    def _name_every_layer(cls, layer: str | None) -> str | None:
        layer_names(layer)
        return layer


class CalibrationConfig(Section):
    """The false-alarm rate that decisions carry."""

    alpha: float = Field(0.05, gt=0, lt=1, description="share of known inputs that may be flagged")
    delta: Annotated[float, Field(gt=0, lt=1)] | None = Field(
        None, description="hold alpha with probability 1 − delta over the calibration data, not on average over it"
    )


class Recipe(Section):
    """One training run, whole."""

    name: str = Field(description="what to call it")
    data: DataConfig
    backbone: BackboneConfig = BackboneConfig()
    method: MethodConfig = Field(BESNNConfig(), description="What to train; its name says which settings there are.")
    training: TrainingConfig = TrainingConfig()
    pretraining: TrainingConfig | None = Field(
        None,
        description="train the backbone in a plain softmax network first, with these settings but the seed and precision of "
        "`training`, and start from its trunk; null: start afresh",
    )
    score: ScoreConfig = ScoreConfig()
    calibration: CalibrationConfig = CalibrationConfig()

    @field_validator("method", mode="before")
    @classmethod
    def _name_the_method(cls, method: object) -> object:
        """A method section without a name is the BE-SNN's; a name alone is the method with its default settings."""
        if isinstance(method, str):
            return {"name": method}
        return {"name": "be-snn", **method} if isinstance(method, dict) else method

    @model_validator(mode="after")
    def _train_what_there_is(self) -> Self:
        _schedule_existing_terms("training", self.training, self.method)
        for section, training in (("training", self.training), ("pretraining", self.pretraining)):
            if training is not None and training.patience is not None and not self.data.validation:
                raise ValueError(f"{section}.patience needs validation data: set data.validation above 0")
        if self.method.mirror and not self.training.augment.flip:
            raise ValueError(
                "method.mirror=true shows members mirror images, and training.augment.flip=false never did: set both or neither"
            )
        return self

    @model_validator(mode="after")
    def _start_from_one_plain_network(self) -> Self:
        starts = {"pretraining": self.pretraining, "backbone.weights": self.backbone.weights}
        given = [field for field, value in starts.items() if value is not None]
        if len(given) > 1:
            raise ValueError("pretraining and backbone.weights each say what to start from: set only one of them")
        if given and self.method.name == "deep-ensemble":
            raise ValueError(f"{given[0]} would give all networks of a deep ensemble one start: leave it out")
        if self.pretraining is None:
            return self
        _schedule_existing_terms("pretraining", self.pretraining, SoftmaxConfig(name="softmax"))
        return self

    def plain(self) -> "Recipe":
        """The plain softmax network that `pretraining` describes, as a recipe of its own."""
        assert self.pretraining is not None
        training = self.pretraining.model_dump() | self.training.model_dump(include={"seed", "precision"})
        changes = {"method": "softmax", "training": training, "pretraining": None, "score": {"name": "method"}}
        return Recipe.model_validate({**self.model_dump(), **changes})

    @property
    def batch_size(self) -> int:
        """Inputs in a batch: `batch_size`, or what `batch_rows` has room for; rounded down to equal shares of one or more."""
        rows, shares = self.training.batch_rows, self.shares
        inputs = self.training.batch_size if rows is None else rows * shares // self.method.members
        return max(shares, inputs // shares * shares)

    @property
    def shares(self) -> int:
        """Into how many equal shares a batch divides: N where each member learns from its own inputs, else 1."""
        dealt = isinstance(self.method, BESNNConfig | BatchEnsembleConfig) and self.method.own_inputs
        return self.method.members if dealt else 1


def _schedule_existing_terms(section: str, training: TrainingConfig, method: MethodConfig) -> None:
    """Refuses settings of terms that a method's objective does not have; `section` is where in the recipe they stand."""
    terms = ", ".join(method.terms)
    if unknown := [name for name in training.ramps if name not in method.terms]:
        raise ValueError(f"{section}.ramps.{unknown[0]}: the objective of {method.name} has the terms {terms}")
    if training.gradient_every > 1 and "gradient" not in method.terms:
        raise ValueError(
            f"{section}.gradient_every={training.gradient_every}: the objective of {method.name} has no gradient penalty, "
            f"only {terms}; leave the field out"
        )
