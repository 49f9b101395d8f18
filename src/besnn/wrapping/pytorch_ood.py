"""pytorch-ood's detectors as besnn's scores, and besnn's as pytorch-ood's detectors."""

from collections.abc import Iterable, Mapping
from typing import Any, Self

import torch
from torch import Tensor, nn

from besnn.detection import Density, Score
from besnn.detection.score_set import COMBINED
from besnn.detector import Detector
from besnn.errors import InputError, NotReadyError
from besnn.wrapping.loaders import optional_class, wrap_loader

Base = optional_class("pytorch_ood.api", "Detector")


class AsDetector(Base):  # type: ignore[misc,valid-type]  # it is known at run time
    """A besnn score with pytorch-ood's protocol: `fit(loader)`, then `predict(x)`, where larger is stranger."""

    requires_fit = True

    def __init__(self, model: nn.Module, score: str = COMBINED) -> None:
        self.model, self.score = model, score
        self.detector: Detector | None = None

    def fit(self, data_loader: Iterable[Any]) -> Self:
        """Fit the score to training data."""
        self.detector = wrap_loader(self.model, data_loader, score=self.score)
        return self

    def predict(self, x: Tensor) -> Tensor:
        """Return outlier scores `[batch]`."""
        if self.detector is None:
            raise NotReadyError("the detector is not fitted: call fit(loader) with training data first")
        return torch.from_numpy(self.detector.score(x)).to(x.device)

    def __call__(self, x: Tensor) -> Tensor:
        """Return outlier scores `[batch]`."""
        return self.predict(x)


def score_of(detector: Any) -> Score:
    """Return one of pytorch-ood's detectors of logits as a score, to be entered into `besnn.detection.SCORES["logits"]`."""
    if not hasattr(detector, "predict_logits"):
        raise InputError(f"{type(detector).__name__} does not score logits: use besnn.wrapping.pytorch_ood.FeatureDensity")

    def score(logits: Tensor) -> Tensor:
        found: Tensor = detector.predict_logits(logits.mean(dim=0))
        return found

    return score


class FeatureDensity(Density):
    """One of pytorch-ood's detectors of features as a density of a single network; it cannot be saved in a model file."""

    def __init__(self, detector: Any) -> None:
        if not hasattr(detector, "predict_features"):
            raise InputError(f"{type(detector).__name__} does not score features: use besnn.wrapping.pytorch_ood.score_of")
        self.detector = detector

    def fit(self, features: Tensor, labels: Tensor) -> Self:
        """Fit training features `[1, n, d]` with labels `[n]`."""
        self.detector.fit_features(features[0], labels)
        return self

    def score(self, features: Tensor) -> Tensor:
        """Score features `[1, batch, d]` as `[batch]`."""
        found: Tensor = self.detector.predict_features(features[0])
        return found

    def state(self) -> dict[str, Tensor]:
        """Refuse: what a detector of another library consists of is not known."""
        raise InputError(f"{type(self.detector).__name__} of pytorch-ood cannot be saved: choose one of besnn's scores instead")

    @classmethod
    def from_state(cls, state: Mapping[str, Tensor]) -> Self:
        """Refuse, for the same reason."""
        raise NotImplementedError
