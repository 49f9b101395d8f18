"""Relative Mahalanobis distance: how much better the whole data explains an input than any class does (Ren et al. 2021)."""

from collections.abc import Mapping
from typing import Self

import torch
from torch import Tensor

from besnn.detection.densities.class_gaussian import ClassGaussianDensity
from besnn.detection.densities.density import Density
from besnn.storage.tensor_file import under


class RelativeMahalanobis(Density):
    """−max_c log N(x; μ_c, Σ) + log N(x; μ, Σ₀): half of min_c MD_c² − MD₀², up to a constant.

    Directions in which all classes vary alike cancel, so that it finds near outliers which the distance itself misses.
    """

    def __init__(self) -> None:
        self.classes, self.background = ClassGaussianDensity(), ClassGaussianDensity()

    def fit(self, features: Tensor, labels: Tensor) -> Self:
        """Fit training features `[members, n, d]` with labels `[n]`."""
        self.classes.fit(features, labels)
        self.background.fit(features, torch.zeros(features.shape[1], dtype=torch.int64))
        return self

    def score(self, features: Tensor) -> Tensor:
        """Score features `[members, batch, d]` as `[batch]`."""
        return self.classes.score(features) - self.background.score(features)

    def state(self) -> dict[str, Tensor]:
        """Return both sets of Gaussians."""
        parts = {"classes": self.classes.state(), "background": self.background.state()}
        return {f"{part}/{name}": value for part, state in parts.items() for name, value in state.items()}

    @classmethod
    def from_state(cls, state: Mapping[str, Tensor]) -> Self:
        """Restore the density that `state` describes."""
        density = cls()
        density.classes = ClassGaussianDensity.from_state(under("classes/", state))
        density.background = ClassGaussianDensity.from_state(under("background/", state))
        return density
