"""Class-conditional Gaussians: an input is unusual where no class's Gaussian is dense."""

import math
from collections.abc import Mapping
from typing import Literal, Self, get_args

import torch
from torch import Tensor, nn

from besnn.checks import as_integers
from besnn.detection.densities.density import Density, check_features, check_same_layer
from besnn.errors import InputError, NotReadyError

Covariance = Literal["shared", "class"]
COVARIANCES: tuple[Covariance, ...] = get_args(Covariance)


class ClassGaussianDensity(Density):
    """Minus the largest class log-density, −max_c log N(x; μ_c, Σ_c), averaged over the members (Lee et al. 2018).

    Takes 4 · members · (classes · d + g · d (d + 1) / 2) bytes in a file, with g = 1 covariance or one per class, and
    8 · members · g · d² in memory. It fits and scores in float64, because whitening a flat direction exhausts float32.
    It scores with what it stores, so a saved density scores the same.

    Args:
        covariance: one `"shared"` by the classes, or one per `"class"`.
        shrinkage: weight in [0, 1] of the isotropic part of Σ; None derives it from the data
            (oracle approximating shrinkage, Chen et al. 2010).

    Example:
        >>> training = torch.tensor([[[-1.0], [1.0], [9.0], [11.0]]])  # [members, n, d]
        >>> density = ClassGaussianDensity().fit(training, torch.tensor([0, 0, 1, 1]))
        >>> density.score(torch.tensor([[[0.0], [5.0], [10.0]]]))
        tensor([ 0.9189, 13.4189,  0.9189])
    """

    def __init__(self, covariance: Covariance = "shared", shrinkage: float | None = None) -> None:
        self.covariance = covariance
        self.shrinkage = shrinkage
        self._means: Tensor | None = None  # [members, classes, d]
        self._factors: Tensor | None = None  # Cholesky, [members, 1 or classes, d, d]

    def fit(self, features: Tensor, labels: Tensor) -> Self:
        """Fit training features `[members, n, d]` with labels `[n]`; a class without features gets no Gaussian."""
        check_features(features)
        if self.covariance not in COVARIANCES:
            raise InputError(f"covariance={self.covariance!r} is unknown: use one of {COVARIANCES}")
        if self.shrinkage is not None and not 0 <= self.shrinkage <= 1:
            raise InputError(f"shrinkage={self.shrinkage} is out of range: choose it between 0 and 1, or None")
        classes = as_integers(labels, "labels")
        if classes.shape != features.shape[1:2]:
            raise InputError(f"labels have shape {list(classes.shape)}: expected one per feature row, [{features.shape[1]}]")
        inside = [torch.nonzero(classes == c).flatten().to(features.device) for c in sorted(set(classes.tolist()))]
        means, factors = [], []
        for member in features:
            by_class = [member[rows].double() for rows in inside]
            means.append(torch.stack([x.mean(dim=0) for x in by_class]))
            spread = [x - mean for x, mean in zip(by_class, means[-1], strict=True)]
            groups = spread if self.covariance == "class" else [torch.cat(spread)]
            factors.append(torch.stack([_cholesky(group, self.shrinkage) for group in groups]))
        # Rounded to what is stored, so that a saved density scores the same.
        self._means = torch.stack(means).float().double()
        self._factors = torch.stack(factors).float().double()
        return self

    def score(self, features: Tensor) -> Tensor:
        """Score features `[members, batch, d]` as `[batch]`; the Gaussians move to their device and stay there."""
        means, factors = self._fitted()
        check_same_layer(features, members=means.shape[0], dimension=means.shape[2])
        self._means, self._factors = means, factors = means.to(features.device), factors.to(features.device)
        members = zip(features, means, factors, strict=True)
        score = torch.stack([-_log_densities(x.double(), *gaussians).amax(dim=-1) for x, *gaussians in members]).mean(dim=0)
        return score.to(torch.promote_types(features.dtype, torch.float32))

    def state(self) -> dict[str, Tensor]:
        """Return means and packed Cholesky factors in float32."""
        means, factors = self._fitted()
        row, column = torch.tril_indices(means.shape[2], means.shape[2])
        return {"means": means.float().cpu(), "factors": factors.float().cpu()[..., row, column]}

    @classmethod
    def from_state(cls, state: Mapping[str, Tensor]) -> Self:
        """Restore the density that `state` describes."""
        means, packed = state["means"].double(), state["factors"].double()
        dimension = means.shape[2]
        row, column = torch.tril_indices(dimension, dimension)
        factors = packed.new_zeros(*packed.shape[:2], dimension, dimension)
        factors[..., row, column] = packed
        density = cls("shared" if packed.shape[1] == 1 else "class")
        density._means, density._factors = means, factors
        return density

    def network(self) -> nn.Module:
        """Return `score` as a network that exports."""
        return _ClassGaussianNetwork(*self._fitted())

    def _fitted(self) -> tuple[Tensor, Tensor]:
        if self._means is None or self._factors is None:
            raise NotReadyError("the density is not fitted: call fit(features, labels) with training features first")
        return self._means, self._factors


def shrinkage_weight(covariance: Tensor, n: int) -> float:
    """Compute the weight of the isotropic part for a covariance `[d, d]` of n samples (oracle approximating shrinkage).

    Example:
        >>> round(shrinkage_weight(torch.diag(torch.tensor([1.0, 9.0])), n=99), 4)
        0.0569
    """
    dimension = len(covariance)
    squares = covariance.square().mean()
    level = covariance.trace().square() / dimension**2
    weight = (squares + level) / ((n + 1) * (squares - level / dimension))
    return min(1.0, float(weight))


def _cholesky(spread: Tensor, shrinkage: float | None) -> Tensor:
    """Factorise the shrunk covariance of centred features `[n, d]`."""
    covariance = spread.T @ spread / len(spread)
    weight = shrinkage_weight(covariance, len(spread)) if shrinkage is None else shrinkage
    shrunk = (1 - weight) * covariance
    shrunk.diagonal().add_(weight * covariance.trace() / len(covariance))
    factor: Tensor
    factor, failed = torch.linalg.cholesky_ex(shrunk)
    if int(failed):
        raise InputError(
            f"{len(spread)} features have a singular covariance: use more of them, covariance='shared' or a larger shrinkage"
        )
    return factor


def _log_densities(features: Tensor, means: Tensor, factors: Tensor) -> Tensor:
    """Compute one member's log N(x; μ_c, L Lᵀ): `[batch, d]`, `[classes, d]`, `[1 or classes, d, d]` to `[batch, classes]`."""
    columns = []
    for factor, group in zip(factors, means.split(len(means) // len(factors)), strict=True):
        white, white_means = (torch.linalg.solve_triangular(factor, x.T, upper=False).T for x in (features, group))
        squared = torch.cdist(white, white_means, compute_mode="donot_use_mm_for_euclid_dist").square()
        constant = features.shape[1] * math.log(2 * math.pi) / 2 + factor.diagonal().log().sum()
        columns.append(-squared / 2 - constant)
    return torch.cat(columns, dim=1)


class _ClassGaussianNetwork(nn.Module):
    means: Tensor
    whitening: Tensor
    constants: Tensor

    def __init__(self, means: Tensor, factors: Tensor) -> None:
        super().__init__()
        classes, dimension = means.shape[1:]
        whitening = torch.linalg.inv(factors)  # L⁻¹, [members, 1 or classes, d, d]
        constants = dimension * math.log(2 * math.pi) / 2 + factors.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        self.register_buffer("means", means)
        self.register_buffer("whitening", whitening.expand(-1, classes, -1, -1).contiguous())
        self.register_buffer("constants", constants.expand(-1, classes).contiguous())

    def forward(self, features: Tensor) -> Tensor:
        centred = features.double()[:, None] - self.means[:, :, None]  # [members, classes, batch, d]
        squared = (centred @ self.whitening.transpose(2, 3)).square().sum(dim=-1)
        densities = -squared / 2 - self.constants[:, :, None]
        return -densities.amax(dim=1).mean(dim=0)
