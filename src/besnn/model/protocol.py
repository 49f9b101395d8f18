"""What every method is to the trainer, the detector and the evaluation: they never ask which one they hold."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar, Literal, Protocol

from torch import Tensor, nn

EvidenceKind = Literal["distances", "logits", "log-likelihoods"]


class OODClassifier(nn.Module, ABC):
    """A classifier whose outputs say how well an input fits each class.

    Attributes:
        method: the method's name, as in records and on the command line.
        default_score: the OOD score that the method's own paper gives it; see `besnn.detection.scores`.
        evidence_kind: what `evidence` returns, which decides the scores that apply to it.
        members: N; 1 for a single network.
        num_classes: C.
        mirror: show every second member mirror images, left to right, once it is trained.
    """

    method: ClassVar[str]
    default_score: ClassVar[str]
    evidence_kind: ClassVar[EvidenceKind]
    members: int
    num_classes: int
    mirror: bool = False
    feature_extractor: nn.Module

    @abstractmethod
    def features(self, x: Tensor) -> Tensor:
        """Features Φ(x), `[members, batch, d]`."""

    @abstractmethod
    def evidence(self, features: Tensor) -> Tensor:
        """Distances, logits or log-likelihoods, `[members, batch, classes]`."""

    @abstractmethod
    def log_probabilities(self, evidence: Tensor) -> Tensor:
        """Class probabilities in log space, `[batch, classes]`, normalised over the classes."""

    def forward(self, x: Tensor) -> Tensor:
        """The evidence for a batch, `[members, batch, classes]`."""
        return self.evidence(self.features(x))

    def extractors(self) -> list[nn.Module]:
        """The networks that `features` runs: one, whatever its members, or one for each member."""
        return [self.feature_extractor]

    def after_step(self, x: Tensor, labels: Tensor) -> None:
        """What the method does after each optimiser step, besides it; mostly nothing."""

    @property
    def frozen(self) -> bool:
        """Whether `evidence` is a deterministic function of its input."""
        return True

    def freeze_classes(self, samples: int = 4096, seed: int = 0) -> None:
        """Makes `evidence` a deterministic function of its input; mostly it is one already."""


class Objective(Protocol):
    """What training minimises: named terms, already weighted, whose sum is the loss."""

    def __call__(
        self, model: OODClassifier, x: Tensor, labels: Tensor, factors: Mapping[str, float] | None = None
    ) -> dict[str, Tensor]:
        """The terms for a batch; `factors` multiplies single terms, and a factor of 0 skips a term's computation."""
        ...
