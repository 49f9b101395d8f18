"""Feature densities: how much training data there is around an input, by name. A new density is one entry in `DENSITIES`."""

from collections.abc import Mapping

from torch import Tensor

from besnn.checks import check_choice
from besnn.detection.densities.class_gaussian import (
    ClassCovarianceDensity,
    ClassGaussianDensity,
    ClassResidualDensity,
    RelativeMahalanobis,
)
from besnn.detection.densities.density import Density, DensitySettings, Head, LayerDensity
from besnn.detection.densities.head import BoundaryDistance, HeadDensity, NeuronCoverage, ReactEnergy, VirtualLogit
from besnn.detection.densities.nearest_neighbour import NearestNeighbourDensity
from besnn.detection.densities.whitened_neighbour import WhitenedNeighbourDensity

__all__ = [
    "DENSITIES",
    "HEAD_DENSITIES",
    "BoundaryDistance",
    "ClassCovarianceDensity",
    "ClassGaussianDensity",
    "ClassResidualDensity",
    "Density",
    "DensitySettings",
    "Head",
    "HeadDensity",
    "LayerDensity",
    "NearestNeighbourDensity",
    "NeuronCoverage",
    "ReactEnergy",
    "RelativeMahalanobis",
    "VirtualLogit",
    "WhitenedNeighbourDensity",
    "density_from_state",
    "density_kind",
    "name_at_layer",
]

DENSITIES: dict[str, type[Density]] = {
    "nearest-neighbour": NearestNeighbourDensity,
    "class-gaussian": ClassGaussianDensity,
    "mahalanobis": ClassGaussianDensity,  # by its other name
    "relative-mahalanobis": RelativeMahalanobis,
    "class-covariance": ClassCovarianceDensity,
    "class-residual": ClassResidualDensity,
    "whitened-neighbour": WhitenedNeighbourDensity,
}
"""The densities by name; enter your own here. See `besnn.detection.NearestNeighbourDensity`."""
HEAD_DENSITIES: dict[str, type[HeadDensity]] = {
    "vim": VirtualLogit,
    "react": ReactEnergy,
    "fdbd": BoundaryDistance,
    "nac": NeuronCoverage,
}
"""Scores of the features that go into a linear classifier, for wrapped networks."""

_AT = " at "


def name_at_layer(kind: str, layer: str) -> str:
    """Return the name of a density at one of several layers, such as `nearest-neighbour at trunk`."""
    return f"{kind}{_AT}{layer}"


def density_kind(name: str) -> str:
    """Return the key in `DENSITIES` of a density, by its name, with or without a layer."""
    return name.partition(_AT)[0]


def density_from_state(name: str, state: Mapping[str, Tensor]) -> Density:
    """Restore the density of that name which `state` describes, of all features or of one layer's."""
    kind = density_kind(name)
    known: dict[str, type[Density]] = {**DENSITIES, **HEAD_DENSITIES}
    check_choice("density", kind, known)
    density = known[kind].from_state({key: value for key, value in state.items() if key != "block"})
    return LayerDensity(density, *state["block"].tolist()) if "block" in state else density
