"""Scores that look at the features which a linear classifier gets, and at the classifier itself: ViM, ReAct, fDBD and NAC."""

import math
from abc import abstractmethod
from collections.abc import Mapping
from typing import Self

import torch
from torch import Tensor

from besnn.detection.densities.density import Density, DensitySettings, Head, check_features, check_same_layer
from besnn.errors import InputError, NotReadyError

PERCENTILE = 0.9  # of all training activations, where ReAct clips
BINS, STEEPNESS, ENOUGH = 50, 100.0, 50  # of NAC, like the next
EDGE = 1e-6  # the outermost bins end here: they are geometric, and so dense near 0 and 1


class HeadDensity(Density):
    """A score of the features `[1, n, d]` that go into a linear head, computed from a few tensors.

    A subclass computes them in `measure`, and scores in `formula`, in operations that export.
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
    def formula(self, features: Tensor, logits: Tensor) -> Tensor:
        """Score features `[batch, d]` and their logits as `[batch]`, by `self.tensors`."""

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
        return self.formula(rows, _logits(rows, self.tensors))

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


class VirtualLogit(HeadDensity):
    """ViM: α ‖residual‖ − logsumexp(logits), with the residual outside the principal subspace of the training features.

    (Wang et al. 2022.) All logits are 0 at the origin, −W⁺b. α makes the mean residual as large as the mean largest logit.
    The subspace has 1,000 dimensions from 2,048 features on, 512 from 768 on, and otherwise half as many as there are features.
    """

    def measure(self, features: Tensor, logits: Tensor) -> dict[str, Tensor]:
        """Compute origin, residual subspace and α."""
        weight, bias = (self.tensors[name].to(features) for name in ("weight", "bias"))
        origin = -(torch.linalg.pinv(weight) @ bias)
        centred = features - origin
        _, directions = torch.linalg.eigh(centred.T @ centred / len(centred))  # in ascending order of their variance
        d = features.shape[1]
        kept = 1000 if d >= 2048 else 512 if d >= 768 else d // 2
        residual = directions[:, : d - kept]
        alpha = logits.amax(dim=1).mean() / (centred @ residual).norm(dim=1).mean()
        return {"origin": origin, "residual": residual.contiguous(), "alpha": alpha}

    def formula(self, features: Tensor, logits: Tensor) -> Tensor:
        """Score features `[batch, d]` as `[batch]`."""
        length: Tensor = ((features - self.tensors["origin"]) @ self.tensors["residual"]).norm(dim=1)
        return self.tensors["alpha"] * length - logits.logsumexp(dim=1)


class ReactEnergy(HeadDensity):
    """ReAct (Sun et al. 2021): the energy, −logsumexp(logits), of features clipped at the 90th percentile in training."""

    def measure(self, features: Tensor, logits: Tensor) -> dict[str, Tensor]:
        """Compute the percentile."""
        values = features.flatten()
        return {"largest": values.kthvalue(max(1, round(PERCENTILE * len(values)))).values}

    def formula(self, features: Tensor, logits: Tensor) -> Tensor:
        """Score features `[batch, d]` as `[batch]`."""
        clipped = torch.minimum(features, self.tensors["largest"])
        return -(clipped @ self.tensors["weight"].T + self.tensors["bias"]).logsumexp(dim=1)


class BoundaryDistance(HeadDensity):
    """fDBD: minus the mean distance of the features to the boundaries of the predicted class, over their distance to the mean.

    (Liu & Qin 2024.) The boundary between classes c and k is |logit_c − logit_k| / ‖w_c − w_k‖ away. The mean is that of the
    training features.
    """

    def measure(self, features: Tensor, logits: Tensor) -> dict[str, Tensor]:
        """Compute the mean of the features, and how fast the logits of two classes move apart."""
        weight = self.tensors["weight"].to(features)
        apart = torch.cdist(weight, weight, compute_mode="donot_use_mm_for_euclid_dist")
        return {"mean": features.mean(dim=0), "apart": torch.where(apart > 0, apart, 1.0)}

    def formula(self, features: Tensor, logits: Tensor) -> Tensor:
        """Score features `[batch, d]` as `[batch]`."""
        best = logits.max(dim=1)
        distances = (best.values[:, None] - logits) / self.tensors["apart"][best.indices]
        reach: Tensor = (features - self.tensors["mean"]).norm(dim=1).clamp_min(1e-8)
        return -distances.sum(dim=1) / ((logits.shape[1] - 1) * reach)


class NeuronCoverage(HeadDensity):
    """NAC: minus the mean coverage of the neurons' states, the share of `ENOUGH` training inputs in the same bin, at most 1.

    (Liu et al. 2024.) The state of a neuron is σ(100 · z · ∂KL/∂z), with KL the divergence of the uniform distribution from the
    softmax; behind a linear head the gradient is (p − 1/C) W. Bins are compared before the σ, which cannot tell apart numbers
    near 1.
    """

    def measure(self, features: Tensor, logits: Tensor) -> dict[str, Tensor]:
        """Count the training inputs in each bin of each neuron."""
        edges = _edges().to(features.device)
        bins = _bins(_states(features, logits, self.tensors["weight"].to(features)), edges)
        counts = torch.zeros(features.shape[1], BINS, dtype=features.dtype, device=features.device)
        counts.scatter_add_(1, bins.T, torch.ones_like(features).T)
        return {"edges": edges, "coverage": (counts / ENOUGH).clamp_max(1)}

    def formula(self, features: Tensor, logits: Tensor) -> Tensor:
        """Score features `[batch, d]` as `[batch]`."""
        bins = _bins(_states(features, logits, self.tensors["weight"]), self.tensors["edges"])
        return -self.tensors["coverage"].gather(1, bins.T).mean(dim=0)


def _states(features: Tensor, logits: Tensor, weight: Tensor) -> Tensor:
    gradient = (logits.softmax(dim=1) - 1 / logits.shape[1]) @ weight
    return STEEPNESS * features * gradient


def _edges() -> Tensor:
    """Return the edges between bins before the σ, `[BINS − 1]`: geometric from there up to 0.5, and mirrored."""
    left = torch.logspace(math.log10(EDGE), math.log10(0.5), BINS // 2 + 1, dtype=torch.float64)[1:-1].logit()
    return torch.cat([left, torch.zeros(1), -left.flip(0)]).float().double()


def _bins(states: Tensor, edges: Tensor) -> Tensor:
    """Return the bin of each state, `[n, d]`; ONNX has no binary search."""
    if torch.compiler.is_compiling():
        return (states[..., None] > edges).sum(dim=-1)
    return torch.bucketize(states, edges)
