"""Nearest neighbours after whitening: an input is unusual where no training features are near, in units of their spread."""

from collections.abc import Mapping
from typing import Self

from torch import Tensor

from besnn.detection.densities.class_gaussian import ClassGaussianDensity
from besnn.detection.densities.density import Density, DensitySettings
from besnn.detection.densities.nearest_neighbour import NearestNeighbourDensity
from besnn.storage.tensor_file import under


class WhitenedNeighbourDensity(Density):
    """Euclidean distance to the k-th nearest training feature, in units of the spread within the classes.

    The features are whitened by the covariance of `ClassGaussianDensity`, so that neither scales nor correlations of columns
    matter: what is rare is far. Unlike a Gaussian, it follows classes of any shape.
    """

    def __init__(self, k: int = 20, max_rows: int | None = None) -> None:
        self.max_rows = max_rows
        self._gaussian = ClassGaussianDensity()
        self._neighbours = NearestNeighbourDensity(k, metric="euclidean", max_rows=max_rows)

    @classmethod
    def from_settings(cls, settings: DensitySettings) -> Self:
        """Make a density that stores the recipe's number of rows."""
        return cls(settings.neighbour, settings.stored_rows)

    @classmethod
    def covariances(cls, classes: int) -> int:
        """Return 1: the covariance within the classes."""
        return 1

    def fit(self, features: Tensor, labels: Tensor) -> Self:
        """Fit training features `[members, n, d]` with labels `[n]`."""
        self._neighbours.fit(self._gaussian.fit(features, labels).whitened(features))
        return self

    def score(self, features: Tensor) -> Tensor:
        """Score features `[members, batch, d]` as `[batch]`."""
        return self._neighbours.score(self._gaussian.whitened(features))

    def score_beyond(self, features: Tensor, limit: float) -> Tensor:
        """Score features `[members, batch, d]` as `[batch]`, exactly above the limit."""
        return self._neighbours.score_beyond(self._gaussian.whitened(features), limit)

    def state(self) -> dict[str, Tensor]:
        """Return the covariance and the stored rows."""
        return {f"gaussian/{name}": value for name, value in self._gaussian.state().items()} | self._neighbours.state()

    @classmethod
    def from_state(cls, state: Mapping[str, Tensor]) -> Self:
        """Restore the density that `state` describes."""
        density = cls()
        density._gaussian = ClassGaussianDensity.from_state(under("gaussian/", state))
        density._neighbours = NearestNeighbourDensity.from_state(state)
        return density
