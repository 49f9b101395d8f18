"""A density that looks at some of the features only: those of one layer, where several stand side by side."""

from collections.abc import Mapping
from typing import Self

import torch
from torch import Tensor

from besnn.detection.density import DENSITIES, Density

_AT = " at "


class BlockDensity:
    """A density of the features from `first` up to `first + width`.

    Args:
        density: of those features.
        first: where they begin.
        width: how many they are.

    Example:
        >>> from besnn.detection import NearestNeighbourDensity
        >>> training = torch.tensor([[[9.0, 1.0, 0.0], [9.0, 0.0, 1.0]]])  # [members, n, d]
        >>> density = BlockDensity(NearestNeighbourDensity(k=1), first=1, width=2).fit(training, torch.zeros(2))
        >>> density.score(torch.tensor([[[0.0, 3.0, 0.0]]]))
        tensor([0.])
    """

    def __init__(self, density: Density, first: int, width: int) -> None:
        self.density, self.first, self.width = density, first, width

    def of(self, features: Tensor) -> Tensor:
        """The features it looks at, of all `[members, n, d]`."""
        return features[..., self.first : self.first + self.width]

    def fit(self, features: Tensor, labels: Tensor) -> Self:
        """Fits training features `[members, n, d]` with labels `[n]`."""
        self.density.fit(self.of(features), labels)
        return self

    def score(self, features: Tensor) -> Tensor:
        """Features `[members, batch, d]` to scores `[batch]`."""
        return self.density.score(self.of(features))

    def state(self) -> dict[str, Tensor]:
        """What `density_from_state` needs."""
        return {**self.density.state(), "block": torch.tensor([self.first, self.width])}


def block_name(kind: str, layer: str) -> str:
    """What a density at one of several layers is called.

    >>> block_name("nearest-neighbour", "trunk")
    'nearest-neighbour at trunk'
    """
    return f"{kind}{_AT}{layer}"


def kind_of(name: str) -> str:
    """The kind of a density, by its name.

    >>> kind_of("nearest-neighbour at trunk"), kind_of("class-gaussian")
    ('nearest-neighbour', 'class-gaussian')
    """
    return name.partition(_AT)[0]


def density_from_state(name: str, state: Mapping[str, Tensor]) -> Density:
    """The density of that name that `state` came from, whether of all features or of a block of them."""
    density = DENSITIES[kind_of(name)].from_state({key: value for key, value in state.items() if key != "block"})
    return BlockDensity(density, *state["block"].tolist()) if "block" in state else density
