"""What scores share that look at the features which a linear classifier gets, and at the classifier itself."""

from abc import abstractmethod
from collections.abc import Mapping
from typing import Self

from torch import Tensor

from besnn.detection.densities.density import Density, DensitySettings, Head, check_features, check_same_layer
from besnn.errors import InputError, NotReadyError


class HeadDensity(Density):
    """A score of the features `[1, n, d]` that go into a linear head, computed from a few tensors.

    A subclass computes its tensors in `measure`, and scores in `formula`, in operations that export.
    """

    def __init__(self, head: Head | None = None) -> None:
        self.tensors: dict[str, Tensor] = {}
        if head is not None:
            self.tensors = {"weight": head.weight.detach().float(), "bias": head.bias.detach().float()}

    @classmethod
    def from_settings(cls, settings: DensitySettings) -> Self:
        """Make a density of the settings' head."""
        if settings.head is None:
            raise InputError("this score needs the features that go into a linear classifier: choose nearest-neighbour")
        return cls(settings.head)

    @abstractmethod
    def measure(self, features: Tensor, logits: Tensor) -> dict[str, Tensor]:
        """Compute from training features `[n, d]` and their logits what `formula` needs; all in float64."""

    @abstractmethod
    def formula(self, features: Tensor, logits: Tensor, tensors: Mapping[str, Tensor]) -> Tensor:
        """Score features `[batch, d]` and their logits as `[batch]`."""

    def fit(self, features: Tensor, labels: Tensor | None = None) -> Self:
        """Fit training features `[1, n, d]`; labels are not used."""
        check_features(features)
        head = {name: self.tensors[name].to(features.device) for name in ("weight", "bias")}
        check_same_layer(features, members=1, dimension=head["weight"].shape[1])
        exact = {name: value.double() for name, value in head.items()}
        rows = features[0].double()
        measured = self.measure(rows, _logits(rows, exact))
        self.tensors = head | {name: value.float() for name, value in measured.items()}
        return self

    def score(self, features: Tensor) -> Tensor:
        """Score features `[1, batch, d]` as `[batch]`; the tensors move to their device and stay there."""
        self._check_fitted()
        check_same_layer(features, members=1, dimension=self.tensors["weight"].shape[1])
        if self.tensors["weight"].device != features.device:
            self.tensors = {name: value.to(features.device) for name, value in self.tensors.items()}
        rows = features[0].float()
        return self.formula(rows, _logits(rows, self.tensors), self.tensors)

    def state(self) -> dict[str, Tensor]:
        """Return all tensors."""
        self._check_fitted()
        return {name: value.cpu() for name, value in self.tensors.items()}

    @classmethod
    def from_state(cls, state: Mapping[str, Tensor]) -> Self:
        """Restore the density that `state` describes."""
        density = cls()
        density.tensors = dict(state)
        return density

    def _check_fitted(self) -> None:
        if self.tensors.keys() <= {"weight", "bias"}:
            raise NotReadyError("the density is not fitted: call fit(features) with training features first")


def _logits(features: Tensor, head: Mapping[str, Tensor]) -> Tensor:
    return features @ head["weight"].T + head["bias"]
