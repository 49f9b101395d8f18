"""Feature density: how much training data there is around an input, on the features `[members, n, d]` of a layer."""

from collections.abc import Mapping
from typing import Protocol, Self

from torch import Tensor

from besnn.detection.gaussians import ClassGaussianDensity
from besnn.detection.neighbours import NearestNeighbourDensity


class Density(Protocol):
    """What the densities have in common: fit on training features, then score; the state fits in a file of tensors."""

    def fit(self, features: Tensor, labels: Tensor) -> Self:
        """Fits training features `[members, n, d]` with labels `[n]`."""

    def score(self, features: Tensor) -> Tensor:
        """Features `[members, batch, d]` to scores `[batch]`, higher = more out-of-distribution."""

    def state(self) -> dict[str, Tensor]:
        """What makes it again, as tensors on the CPU."""


class StoredDensity(Density, Protocol):
    """A density that is made of its state alone."""

    @classmethod
    def from_state(cls, state: Mapping[str, Tensor]) -> Self:
        """The density that `state` came from."""


DENSITIES: dict[str, type[StoredDensity]] = {
    "nearest-neighbour": NearestNeighbourDensity,
    "class-gaussian": ClassGaussianDensity,
}
