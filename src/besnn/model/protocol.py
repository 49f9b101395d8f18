"""The protocol of all methods: trainer, detector and evaluation never ask which method they hold."""

import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from typing import Any, ClassVar, Literal, Protocol

import torch
from torch import Tensor, nn

from besnn.checks import check_inputs, check_sizes
from besnn.errors import InputError
from besnn.layers import Initialiser, batch_ensemble, members_of, split_members, tile

EvidenceKind = Literal["distances", "logits", "log-likelihoods"]
"""What a method says about each class; it decides which scores apply. See `besnn.detection.scores_for`."""


class OODClassifier(nn.Module, ABC):
    """A classifier whose outputs say how well an input fits each class: the base of all methods. See `besnn.BESNN`."""

    method: ClassVar[str]  # as in records and on the command line
    default_score: ClassVar[str]  # the OOD score of the method's own paper; see `besnn.detection.scores`
    evidence_kind: ClassVar[EvidenceKind]  # what `evidence` returns, which decides the scores that apply to it
    members: int  # 1 for a single network
    num_classes: int
    mirror: bool = False  # in evaluation, give every second member mirror images, left to right
    exact: ClassVar[bool] = False  # inference runs the extractor itself, not a faster equivalent that rounds differently
    feature_extractor: nn.Module

    @abstractmethod
    def features(self, x: Tensor) -> Tensor:
        """Return the features Φ(x), `[members, batch, d]`."""

    @abstractmethod
    def evidence(self, features: Tensor) -> Tensor:
        """Return distances, logits or log-likelihoods, `[members, batch, classes]`."""

    def log_probabilities(self, evidence: Tensor) -> Tensor:
        """Return class probabilities in log space, `[batch, classes]`, normalised over the classes.

        They are the members' mean kernel for distances, and the members' mean softmax for logits and log-likelihoods (with
        which it is the posterior under equal priors).
        """
        return kernel_log_probabilities(evidence) if self.evidence_kind == "distances" else log_mean_softmax(evidence)

    def forward(self, x: Tensor) -> Tensor:
        """Return the evidence for a batch, `[members, batch, classes]`."""
        return self.evidence(self.features(x))

    def extractors(self) -> list[nn.Module]:
        """Return the networks that `features` runs: one for all members, or one per member."""
        return [self.feature_extractor]

    def file_parts(self) -> tuple[dict[str, Tensor], dict[str, Any] | None]:
        """Return what a model file keeps of the model: its weights; and a description, unless a recipe says how to build it."""
        return {f"model/{name}": value for name, value in self.state_dict().items()}, None

    def after_step(self, x: Tensor, labels: Tensor) -> None:
        """Do what the method does after each optimiser step; usually nothing."""

    @property
    def frozen(self) -> bool:
        """Whether `evidence` is a deterministic function of its input."""
        return True

    def freeze_classes(self, samples: int = 4096, seed: int = 0) -> None:
        """Make `evidence` a deterministic function of its input; for most methods it already is."""


def kernel_log_probabilities(distances: Tensor) -> Tensor:
    """Normalise the members' mean kernel exp(−d̄) over classes, in log space so that distant inputs do not underflow.

    Distances `[members, batch, classes]` give log probabilities `[batch, classes]`.

    >>> kernel_log_probabilities(torch.tensor([[[0.0, 1.0]]])).exp()
    tensor([[0.7311, 0.2689]])
    """
    finite = distances.clamp(max=torch.finfo(distances.dtype).max)  # infinitely far from all classes: uniform, not NaN
    return torch.log_softmax(torch.logsumexp(-finite, dim=0), dim=-1)


def log_mean_softmax(logits: Tensor) -> Tensor:
    """Compute the log of the members' mean predictive distribution, `[batch, classes]` from `[members, batch, classes]`."""
    return torch.log_softmax(logits, dim=-1).logsumexp(dim=0) - math.log(logits.shape[0])


class BatchEnsembled(OODClassifier):
    """A classifier whose `feature_extractor` is a batch ensemble; see `BESNN` for the arguments."""

    def __init__(
        self,
        feature_extractor: nn.Module,
        num_classes: int,
        feature_dim: int,
        members: int,
        norm: str,
        init: Initialiser | None,
        share: Collection[str | type[nn.Module]],
        mirror: bool,
    ) -> None:
        super().__init__()
        check_sizes(num_classes, feature_dim=feature_dim)
        present = members_of(feature_extractor)
        if present is None:
            feature_extractor = batch_ensemble(feature_extractor, members, norm=norm, init=init, share=share)
        elif present != members:
            raise InputError(f"the feature extractor has {present} members but members={members}: make them equal")
        self.feature_extractor = feature_extractor
        self.num_classes, self.feature_dim, self.members, self.mirror = num_classes, feature_dim, members, mirror

    def features(self, x: Tensor) -> Tensor:
        """Return Φ_n(x) of every member, `[members, batch, d]`, from an untiled batch `[batch, ...]`."""
        check_inputs(x)
        return self.feature_rows(tile(x, self.members, mirror=self.mirror and not self.training))

    def feature_rows(self, rows: Tensor) -> Tensor:
        """Return the features of member-major rows `[members · batch, ...]`, `[members, batch, d]`."""
        return split_members(checked_features(self.feature_extractor(rows), self.feature_dim), self.members)


class Objective(Protocol):
    """What training minimises: named terms, already weighted, whose sum is the loss. See `besnn.objective.BESNNObjective`."""

    def __call__(
        self, model: OODClassifier, x: Tensor, labels: Tensor, factors: Mapping[str, float] | None = None
    ) -> dict[str, Tensor]:
        """Return the terms for a batch; `factors` multiplies single terms, and a factor of 0 skips a term."""


def check_plain(extractor: nn.Module) -> None:
    """Raise if a network is a batch ensemble: it would silently split a plain batch among its members."""
    if (members := members_of(extractor)) is not None:
        raise InputError(f"the feature extractor is a batch ensemble of {members} members: pass a plain network")


def checked_features(features: Tensor, feature_dim: int) -> Tensor:
    """Return a feature extractor's output if its shape is `[rows, feature_dim]`, else raise."""
    if features.ndim != 2 or features.shape[1] != feature_dim:
        raise InputError(f"the feature extractor returned shape {list(features.shape)}: expected [rows, {feature_dim=}]")
    return features
