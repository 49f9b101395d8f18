"""Deterministic uncertainty quantification (van Amersfoort et al. 2020): one network, an RBF kernel to class centroids."""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from pydantic import Field, PositiveFloat, PositiveInt
from torch import Tensor, nn

from besnn.baselines.method import MakeBackbone, OverClasses, SingleNetwork, SingleNetworkConfig, SquaredNorm
from besnn.checks import check_choice, check_labels, check_sizes, check_weights
from besnn.errors import InputError
from besnn.model import EvidenceKind, Objective, OODClassifier
from besnn.objective import active_terms, gradient_penalty, kernel_cross_entropy, summed_kernel
from besnn.objective.batches import sum_over_processes
from besnn.objective.gradient import TwiceDifferentiable
from besnn.settings import Fraction, Weight

INITIAL_COUNT = 12.0
"""N_c before the first step, as published: about a class's share of a batch of 128 with ten classes, its later value."""


class DUQ(SingleNetwork):
    """A classifier by the kernel K_c = exp(−mean_e (W_c φ − e_c)² / 2σ²) between an input and each class's centroid.

    The centroid e_c = m_c / N_c is not a parameter. After each step, `after_step` updates its two running averages:
    N_c ← γ N_c + (1 − γ) n_c and m_c ← γ m_c + (1 − γ) Σ W_c φ, over the n_c inputs of class c in the batch.

    `length_scale` is σ and `momentum` γ. W starts with a standard deviation of `projection_std`; published are 0.05 for images
    and 1 for Two Moons.

    >>> from besnn.model import two_moons_mlp
    >>> model = DUQ(two_moons_mlp(), num_classes=2, feature_dim=32, embedding_dim=10, length_scale=0.3, momentum=0.99)
    >>> list(model(torch.rand(5, 2)).shape)
    [1, 5, 2]
    """

    method: ClassVar[str] = "duq"
    default_score: ClassVar[str] = "kernel-confidence"
    evidence_kind: ClassVar[EvidenceKind] = "distances"
    class_counts: Tensor
    class_sums: Tensor

    def __init__(
        self,
        feature_extractor: nn.Module,
        num_classes: int,
        feature_dim: int,
        embedding_dim: int = 256,
        length_scale: float = 0.1,
        momentum: float = 0.999,
        projection_std: float = 0.05,
    ) -> None:
        super().__init__(feature_extractor, num_classes, feature_dim)
        check_sizes(num_classes, embedding_dim=embedding_dim)
        if not 0 < length_scale < math.inf:
            raise InputError(f"length_scale={length_scale}: pass a finite number above 0")
        if not 0 <= momentum < 1:
            raise InputError(f"momentum={momentum}: pass a number from 0 to below 1")
        check_weights(projection_std=projection_std)
        self.length_scale, self.momentum = length_scale, momentum
        self.projection = nn.Parameter(projection_std * torch.randn(num_classes, embedding_dim, feature_dim))
        self.register_buffer("class_counts", torch.full((num_classes,), INITIAL_COUNT))
        self.register_buffer("class_sums", INITIAL_COUNT * torch.randn(num_classes, embedding_dim))

    @property
    def centroids(self) -> Tensor:
        """The centroids e_c = m_c / N_c, `[classes, embedding_dim]`."""
        return self.class_sums / self.class_counts.unsqueeze(1)

    def evidence(self, features: Tensor) -> Tensor:
        """Return the distances −log K_c, `[1, batch, classes]`."""
        embeddings = torch.einsum("mbd,ced->mbce", features, self.projection)
        return (embeddings - self.centroids).square().mean(dim=-1) / (2 * self.length_scale**2)

    @torch.no_grad()
    def after_step(self, x: Tensor, labels: Tensor) -> None:
        """Move the centroids towards the batch, in evaluation mode: BatchNorm neither uses nor updates batch statistics."""
        check_labels(labels, num_classes=self.num_classes, batch=x.shape[0])
        with _evaluation_mode(self):
            features = self.features(x).squeeze(0).to(self.class_sums.dtype)
        # Not torch's one_hot: it reads the labels back from the device, which a CUDA graph cannot do.
        one_hot = (labels[:, None] == torch.arange(self.num_classes, device=labels.device)).to(self.class_sums.dtype)
        # Σ_b W_c φ_b = W_c Σ_b φ_b: the sum over the batch comes first, so each class is projected once.
        sums = torch.einsum("ced,cd->ce", self.projection, sum_over_processes(one_hot.T @ features))
        self.class_counts.lerp_(sum_over_processes(one_hot.sum(dim=0)), 1 - self.momentum)
        self.class_sums.lerp_(sums, 1 - self.momentum)


@contextmanager
def _evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Switch to evaluation mode; on exit, restore the mode of every module, such as a frozen BatchNorm."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


@dataclass(frozen=True)
class DUQObjective:
    """Binary cross-entropy of the kernels and the two-sided gradient penalty, as in DUQ's published code.

    >>> from besnn.model import two_moons_mlp
    >>> model = DUQ(two_moons_mlp(), num_classes=2, feature_dim=32, embedding_dim=10)
    >>> list(DUQObjective()(model, torch.rand(16, 2), torch.arange(16) % 2))
    ['classification', 'gradient']
    """

    gradient_weight: float = 0.05
    over_classes: Literal["sum", "mean"] = "mean"
    squared_norm: bool = False

    def __post_init__(self) -> None:
        check_weights(gradient_weight=self.gradient_weight)
        check_choice("over_classes", self.over_classes, ("sum", "mean"))

    def __call__(
        self, model: OODClassifier, x: Tensor, labels: Tensor, factors: Mapping[str, float] | None = None
    ) -> dict[str, Tensor]:
        """Return the weighted terms `classification` and `gradient`, each a scalar."""
        weights = active_terms({"classification": 1.0, "gradient": self.gradient_weight}, factors)
        if "gradient" in weights:
            x = x.detach().requires_grad_()
        with TwiceDifferentiable() if "gradient" in weights else nullcontext():
            distances = model(x)
        terms = {}
        if "classification" in weights:
            terms["classification"] = kernel_cross_entropy(distances, labels, self.over_classes)
        if "gradient" in weights:
            terms["gradient"] = gradient_penalty(summed_kernel(distances), x, self.squared_norm)
        return {name: weights[name] * term for name, term in terms.items()}


class DUQConfig(SingleNetworkConfig):
    """DUQ; the defaults are those of its published code."""

    terms: ClassVar[tuple[str, ...]] = ("classification", "gradient")
    name: Literal["duq"] = "duq"
    embedding_dim: PositiveInt = Field(256, description="length of the embedding in which classes have centroids")
    length_scale: PositiveFloat = Field(0.1, description="σ of the kernel")
    momentum: Fraction = Field(0.999, description="of the centroids' running means")
    projection_std: PositiveFloat = Field(0.05, description="standard deviation of the embedding's initial weights")
    gradient_weight: Weight = Field(0.05, description="λ, of the gradient penalty")
    over_classes: OverClasses = "mean"
    squared_norm: SquaredNorm = False

    def build(self, make_backbone: MakeBackbone, num_classes: int, feature_dim: int) -> tuple[OODClassifier, Objective]:
        """Build the model and its objective."""
        sizes = self.embedding_dim, self.length_scale, self.momentum, self.projection_std
        model = DUQ(make_backbone(), num_classes, feature_dim, *sizes)
        return model, DUQObjective(self.gradient_weight, self.over_classes, self.squared_norm)
