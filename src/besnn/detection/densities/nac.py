"""NAC: an input is unusual if its neurons are in states that training inputs rarely put them in (Liu et al. 2024)."""

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from besnn.detection.densities.head import HeadDensity

BINS, STEEPNESS, ENOUGH = 50, 100.0, 50
EDGE = 1e-6  # the outermost bins end here: they are geometric, and so dense near 0 and 1


class NeuronCoverage(HeadDensity):
    """Minus the mean coverage of the neurons' states: the share of `ENOUGH` training inputs in the same bin, at most 1.

    The state of a neuron is σ(100 · z · ∂KL/∂z), with KL the divergence of the uniform distribution from the softmax; behind a
    linear head the gradient is (p − 1/C) W. Bins are compared before the σ, which cannot tell apart numbers near 1.
    """

    def measure(self, features: Tensor, logits: Tensor) -> dict[str, Tensor]:
        """Count the training inputs in each bin of each neuron."""
        edges = _edges().to(features.device)
        bins = _bins(_states(features, logits, self.tensors["weight"].to(features)), edges)
        counts = torch.zeros(features.shape[1], BINS, dtype=features.dtype, device=features.device)
        counts.scatter_add_(1, bins.T, torch.ones_like(features).T)
        return {"edges": edges, "coverage": (counts / ENOUGH).clamp_max(1)}

    def formula(self, features: Tensor, logits: Tensor, tensors: Mapping[str, Tensor]) -> Tensor:
        """Score features `[batch, d]` as `[batch]`."""
        bins = _bins(_states(features, logits, tensors["weight"]), tensors["edges"])
        return -tensors["coverage"].gather(1, bins.T).mean(dim=0)


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
