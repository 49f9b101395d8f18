"""What a feature density must do, the checks of features `[members, n, d]`, and densities of one layer among several."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, Self

import torch
from torch import Tensor

from besnn.checks import values_readable
from besnn.errors import InputError


class Head(NamedTuple):
    """The last, linear layer of a classifier: features `[..., d]` to logits `[..., classes]`."""

    weight: Tensor  # [classes, d]
    bias: Tensor  # [classes]


@dataclass(frozen=True)
class DensitySettings:
    """The settings that densities may use.

    Attributes:
        neighbour: which nearest neighbour to measure the distance to.
        stored_rows: how many training features to store at most.
        head: the linear layer that the features go into, if they do.
    """

    neighbour: int = 20
    stored_rows: int = 10_000
    head: Head | None = None


class Density(ABC):
    """A feature density: fitted to training features, then asked how unusual other features are.

    To add one, subclass this and register it: `besnn.detection.DENSITIES["my-density"] = MyDensity`.
    See `besnn.detection.NearestNeighbourDensity`.

    Attributes:
        max_rows: how many training inputs `fit` uses at most; None for all of them.
    """

    max_rows: int | None = None

    @classmethod
    def from_settings(cls, settings: DensitySettings) -> Self:
        """Make an unfitted density from a recipe's settings; one without settings ignores them."""
        return cls()

    @classmethod
    def covariances(cls, classes: int) -> int:
        """Return how many matrices `[d, d]` the density fits per member; too large ones are refused before training."""
        return 0

    @abstractmethod
    def fit(self, features: Tensor, labels: Tensor) -> Self:
        """Fit training features `[members, n, d]` with labels `[n]`."""

    @abstractmethod
    def score(self, features: Tensor) -> Tensor:
        """Score features `[members, batch, d]` as `[batch]`, higher = more out-of-distribution.

        Exported graphs trace it. If ONNX lacks an operation, use another while `torch.compiler.is_exporting()`.
        """

    def score_beyond(self, features: Tensor, limit: float) -> Tensor:
        """Score as `score` does, but instead of a score up to the limit it may return the limit, if that is faster."""
        return self.score(features)

    @abstractmethod
    def state(self) -> dict[str, Tensor]:
        """Return tensors on the CPU from which `from_state` restores the density."""

    @classmethod
    @abstractmethod
    def from_state(cls, state: Mapping[str, Tensor]) -> Self:
        """Restore the density that `state` describes."""


class LayerDensity(Density):
    """A density of one layer's `width` features from index `first`, where the features of several layers are concatenated."""

    def __init__(self, density: Density, first: int, width: int) -> None:
        self.density, self.first, self.width = density, first, width

    def fit(self, features: Tensor, labels: Tensor) -> Self:
        """Fit training features `[members, n, d]` with labels `[n]`."""
        self.density.fit(self._selected(features), labels)
        return self

    def score(self, features: Tensor) -> Tensor:
        """Score features `[members, batch, d]` as `[batch]`."""
        return self.density.score(self._selected(features))

    def score_beyond(self, features: Tensor, limit: float) -> Tensor:
        """Score features `[members, batch, d]` as `[batch]`, exactly above the limit."""
        return self.density.score_beyond(self._selected(features), limit)

    def _selected(self, features: Tensor) -> Tensor:
        return features[..., self.first : self.first + self.width]

    def state(self) -> dict[str, Tensor]:
        """Return the state of the density and its place among the features."""
        return {**self.density.state(), "block": torch.tensor([self.first, self.width])}

    @classmethod
    def from_state(cls, state: Mapping[str, Tensor]) -> Self:
        """Refuse: only the name of the density says of which kind it is; see `density_from_state`."""
        raise NotImplementedError


def check_features(features: Tensor) -> None:
    """Refuse features that are not finite floating-point numbers `[members, n, d]`."""
    if not isinstance(features, Tensor) or not features.is_floating_point():
        kind = features.dtype if isinstance(features, Tensor) else type(features).__name__
        raise InputError(f"features are {kind}: pass a floating-point tensor [members, n, d]")
    if features.ndim != 3:
        raise InputError(f"features have shape {list(features.shape)}: pass [members, n, d], convolutional ones flattened")
    if values_readable(features) and not bool(torch.isfinite(features).all()):
        raise InputError("features contain NaN or infinite values: check that the inputs and the model's weights are finite")


def check_same_layer(features: Tensor, members: int, dimension: int) -> None:
    """Refuse features of another model or layer than the density was fitted on."""
    check_features(features)
    if features.shape[0] != members or features.shape[2] != dimension:
        raise InputError(
            f"features have shape {list(features.shape)}, the density was fitted on [{members}, n, {dimension}]: "
            "use the same model and layer"
        )
