"""What methods share: the base classes of their settings, and of classifiers with a single network."""

from abc import abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import AfterValidator, Field
from torch import Tensor, nn

from besnn.checks import check_inputs, check_sizes
from besnn.layers import initialiser
from besnn.model import Objective, OODClassifier
from besnn.model.protocol import check_plain, checked_features
from besnn.settings import Section

MakeBackbone = Callable[[], nn.Module]
"""Makes a new feature extractor at each call."""


class MethodConfig(Section):
    """The settings of a method, and how to build it from them.

    To add a method, subclass `SingleNetworkConfig` or `EnsembleConfig`, set `name` and `terms`, add settings as fields, and
    enter the class into `besnn.recipe.METHODS`; see docs/extending.md.

    >>> from besnn.model import two_moons_mlp
    >>> from besnn.recipe import METHODS
    >>> model, objective = METHODS["duq"](embedding_dim=16).build(two_moons_mlp, num_classes=2, feature_dim=32)
    >>> type(model).__name__, type(objective).__name__
    ('DUQ', 'DUQObjective')
    """

    terms: ClassVar[tuple[str, ...]] = ("classification",)  # of the objective; `training.ramps` may schedule them
    takes_trunk: ClassVar[bool] = True  # whether training may start from the trunk of another network
    name: str

    if TYPE_CHECKING:  # fields of some methods, and constants of others

        @property
        def members(self) -> int:
            """N."""

        @property
        def mirror(self) -> bool:
            """Whether every second member sees mirror images once it is trained."""

    @abstractmethod
    def build(self, make_backbone: MakeBackbone, num_classes: int, feature_dim: int) -> tuple[OODClassifier, Objective]:
        """Build the untrained model and its objective; a backbone maps a batch to `[batch, feature_dim]`."""


class SingleNetworkConfig(MethodConfig):
    """The settings of a method with a single network. See `besnn.baselines.MethodConfig`."""

    @property
    def members(self) -> int:
        """One."""
        return 1

    @property
    def mirror(self) -> bool:
        """Never: a single network has no second view."""
        return False


class EnsembleConfig(MethodConfig):
    """The settings of a method with several members. See `besnn.baselines.MethodConfig`."""

    members: int = Field(4, ge=1, le=1024, description="N, the number of members of the ensemble")
    mirror: bool = Field(
        False, description="once trained, show every second member mirror images, left to right; needs `training.augment.flip`"
    )


def _check_initialiser(name: str) -> str:
    initialiser(name)
    return name


FastWeights = Annotated[
    str,
    AfterValidator(_check_initialiser),
    Field(
        description="their initial values: `normal:STD` around 1, `sign:PROBABILITY` of +1, `first` (random signs in the first "
        "layer only) or `ones`"
    ),
]
Norm = Annotated[Literal["shared", "member"], Field(description="BatchNorm shared by the members, or one per member")]
OverClasses = Annotated[Literal["sum", "mean"], Field(description="how the classification loss is reduced over classes")]
SquaredNorm = Annotated[bool, Field(description="penalise the squared norm of the gradient instead of the norm")]
OwnInputs = Annotated[bool, Field(description="split a batch among the members instead of showing all of it to each")]
Smoothing = Annotated[float, Field(ge=0, lt=1, description="share of a label's weight that is spread over all classes")]


class SingleNetwork(OODClassifier):
    """A classifier whose features come from one plain network Φ, which maps a batch to `[batch, feature_dim]`.

    It is the base of methods with a single network. See `besnn.baselines.SoftmaxClassifier`.
    """

    def __init__(self, feature_extractor: nn.Module, num_classes: int, feature_dim: int) -> None:
        super().__init__()
        check_sizes(num_classes, feature_dim=feature_dim)
        check_plain(feature_extractor)
        self.feature_extractor = feature_extractor
        self.num_classes, self.feature_dim, self.members = num_classes, feature_dim, 1

    def features(self, x: Tensor) -> Tensor:
        """Return Φ(x), `[1, batch, d]`, for a batch `[batch, ...]`."""
        check_inputs(x)
        return checked_features(self.feature_extractor(x), self.feature_dim).unsqueeze(0)
