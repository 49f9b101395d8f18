"""Nearest neighbours after whitening: an input is unusual where no training features are near, in units of their spread."""

from collections.abc import Mapping
from typing import Self

from torch import Tensor, nn

from besnn.detection.densities.class_gaussian import ClassGaussianDensity
from besnn.detection.densities.density import Density, DensitySettings, check_same_layer
from besnn.detection.densities.nearest_neighbour import NearestNeighbourDensity


class WhitenedNeighbourDensity(Density):
    """Euclidean distance to the k-th nearest training feature, in units of the spread within the classes.

    The features are whitened by the covariance of `ClassGaussianDensity`, so that neither scales nor correlations of columns
    matter: what is rare is far. Unlike a Gaussian, it follows classes of any shape.
    """

    def __init__(self, k: int = 20, max_rows: int | None = None) -> None:
        self.k, self.max_rows = k, max_rows
        self._gaussian = ClassGaussianDensity()
        self._neighbours = NearestNeighbourDensity(k, metric="euclidean", max_rows=max_rows)
        self._map: tuple[Tensor, Tensor] | None = None  # centre and L⁻¹, on the device of the last features

    @classmethod
    def from_settings(cls, settings: DensitySettings) -> Self:
        """Make a density that stores the recipe's number of rows."""
        return cls(settings.neighbour, settings.stored_rows)

    def fit(self, features: Tensor, labels: Tensor) -> Self:
        """Fit training features `[members, n, d]` with labels `[n]`."""
        self._gaussian.fit(features, labels)
        self._map = None
        self._neighbours.fit(self._whitened(features))
        return self

    def score(self, features: Tensor) -> Tensor:
        """Score features `[members, batch, d]` as `[batch]`."""
        return self._neighbours.score(self._whitened(features))

    def _whitened(self, features: Tensor) -> Tensor:
        if self._map is None:
            self._map = self._gaussian.whitening()
        centre, whitening = self._map
        check_same_layer(features, members=len(whitening), dimension=whitening.shape[2])
        self._map = centre, whitening = centre.to(features.device), whitening.to(features.device)
        return ((features.double() - centre) @ whitening.mT).float()

    def state(self) -> dict[str, Tensor]:
        """Return the covariance and the stored rows."""
        return {f"gaussian/{name}": value for name, value in self._gaussian.state().items()} | self._neighbours.state()

    @classmethod
    def from_state(cls, state: Mapping[str, Tensor]) -> Self:
        """Restore the density that `state` describes."""
        density = cls()
        prefix = "gaussian/"
        gaussian = {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}
        density._gaussian = ClassGaussianDensity.from_state(gaussian)
        density._neighbours = NearestNeighbourDensity.from_state(state)
        density.k = density._neighbours.k
        return density

    def network(self) -> nn.Module:
        """Return `score` as a network that exports."""
        return _WhitenedNetwork(*self._gaussian.whitening(), self._neighbours.network())


class _WhitenedNetwork(nn.Module):
    centre: Tensor
    whitening: Tensor

    def __init__(self, centre: Tensor, whitening: Tensor, neighbours: nn.Module) -> None:
        super().__init__()
        self.neighbours = neighbours
        self.register_buffer("centre", centre)
        self.register_buffer("whitening", whitening)

    def forward(self, features: Tensor) -> Tensor:
        score: Tensor = self.neighbours(((features.double() - self.centre) @ self.whitening.mT).float())
        return score
