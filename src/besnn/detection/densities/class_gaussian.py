"""Class-conditional Gaussians: an input is unusual where no class's Gaussian is dense."""

import math
from collections.abc import Iterator, Mapping
from typing import NamedTuple, Self

import torch
from torch import Tensor
from torch.nn import functional as F

from besnn.checks import as_integers
from besnn.detection.densities.density import Density, check_features, check_same_layer
from besnn.errors import InputError, NotReadyError
from besnn.storage.tensor_file import under

SHARED_ROWS = 0.1
"""Rows per dimension that the shared covariance counts for beside a class's own; chosen on the development half of
`python -m benchmarks table-suite`, where 0.05 to 0.25 are as good."""

SCALE_SHARE, SCALE_ROWS = 0.99, 10_000
"""Residuals are in units of this quantile among so many training rows: a column that others determine is hardly noisy, and one
that is nearly always the same has rare, large residuals that mean little."""
SCALE_FLOOR = 1e-3  # what rounding leaves of a column that others determine is no evidence


class _Prepared(NamedTuple):
    """What scoring needs, in float64; classes are grouped by covariance, of which there is one, or one per class."""

    centre: Tensor  # of all classes, [members, 1, d]
    whitening: Tensor  # L⁻ᵀ of all covariances side by side, [members, d, covariances · d]
    origins: Tensor  # of each group, its centre whitened, [members, covariances · d]
    means: Tensor  # whitened, from the origin of their group, [members, covariances, classes of each, d]
    constants: Tensor  # of the log-densities, [members, covariances]


class ClassGaussianDensity(Density):
    """Minus the largest class log-density, −max_c log N(x; μ_c, Σ), averaged over the members (Lee et al. 2018).

    The covariance is shrunk towards an isotropic one (oracle approximating shrinkage, Chen et al. 2010). Takes
    4 · members · (classes · d + d (d + 1) / 2) bytes in a file and 12 · members · d² in memory. It fits and scores in float64,
    because whitening a flat direction exhausts float32.

    >>> training = torch.tensor([[[-1.0], [1.0], [9.0], [11.0]]])  # [members, n, d]
    >>> density = ClassGaussianDensity().fit(training, torch.tensor([0, 0, 1, 1]))
    >>> density.score(torch.tensor([[[0.0], [5.0], [10.0]]]))
    tensor([ 0.9189, 13.4189,  0.9189])
    """

    def __init__(self) -> None:
        self._means: Tensor | None = None  # [members, classes, d]
        self._factors: Tensor | None = None  # Cholesky, [members, 1 or classes, d, d]
        self._prepared: _Prepared | None = None  # on the device of the last features

    @classmethod
    def covariances(cls, classes: int) -> int:
        """Return 1: all classes share a covariance."""
        return 1

    def fit(self, features: Tensor, labels: Tensor) -> Self:
        """Fit training features `[members, n, d]` with labels `[n]`; a class without features gets no Gaussian."""
        check_features(features)
        classes = as_integers(labels, "labels")
        if classes.shape != features.shape[1:2]:
            raise InputError(f"labels have shape {list(classes.shape)}: expected one per feature row, [{features.shape[1]}]")
        inside = [torch.nonzero(classes == c).flatten().to(features.device) for c in sorted(set(classes.tolist()))]
        means, factors = [], []
        for member in features:
            by_class = [member[rows].double() for rows in inside]
            means.append(torch.stack([x.mean(dim=0) for x in by_class]))
            factors.append(self._factorise([x - mean for x, mean in zip(by_class, means[-1], strict=True)]))
        self._store(torch.stack(means), torch.stack(factors))
        return self

    def _store(self, means: Tensor, factors: Tensor) -> None:
        # Rounded to what is stored, so that a saved density scores the same.
        self._means, self._factors, self._prepared = means.float().cpu(), factors.float().cpu(), None

    def _factorise(self, spreads: list[Tensor]) -> Tensor:
        """Return the Cholesky factors `[1 or classes, d, d]` for the centred features `[n, d]` of each class."""
        return cholesky(shrunk_covariance(torch.cat(spreads)))[None]

    def score(self, features: Tensor) -> Tensor:
        """Score features `[members, batch, d]` as `[batch]`; the Gaussians move to their device and stay there."""
        gaussians = self._on(features)
        centred = features.double() - gaussians.centre
        members = zip(centred, *gaussians[1:], strict=True)
        score = torch.stack([_smallest_surprise(*member) for member in members]).mean(dim=0)
        return score.to(torch.promote_types(features.dtype, torch.float32))

    def whitened(self, features: Tensor) -> Tensor:
        """Return features `[members, n, d]` from the mean of the classes, in units of the first covariance, in float32."""
        gaussians = self._on(features)
        return ((features.double() - gaussians.centre) @ gaussians.whitening[..., : features.shape[2]]).float()

    def _on(self, features: Tensor) -> _Prepared:
        means, factors = self._fitted()
        check_same_layer(features, members=means.shape[0], dimension=means.shape[2])
        if self._prepared is None or self._prepared.centre.device != features.device:
            with torch.inference_mode(False):  # so that gradients can pass later
                self._prepared = _prepare(means.to(features.device).double(), factors.to(features.device).double())
        return self._prepared

    def state(self) -> dict[str, Tensor]:
        """Return means and packed Cholesky factors in float32."""
        means, factors = self._fitted()
        row, column = torch.tril_indices(means.shape[2], means.shape[2])
        return {"means": means, "factors": factors[:, :, row, column]}

    @classmethod
    def from_state(cls, state: Mapping[str, Tensor]) -> Self:
        """Restore the density that `state` describes."""
        density = cls()
        dimension = state["means"].shape[2]
        row, column = torch.tril_indices(dimension, dimension)
        factors = state["factors"].new_zeros(*state["factors"].shape[:2], dimension, dimension)
        factors[:, :, row, column] = state["factors"]
        density._store(state["means"], factors)
        return density

    def _fitted(self) -> tuple[Tensor, Tensor]:
        if self._means is None or self._factors is None:
            raise NotReadyError("the density is not fitted: call fit(features, labels) with training features first")
        return self._means, self._factors


class ClassCovarianceDensity(ClassGaussianDensity):
    """Minus the largest class log-density, −max_c log N(x; μ_c, Σ_c), where each class has a covariance of its own.

    Σ_c is the class's covariance, mixed with d / 10 rows' worth of the covariance that all classes share: with few rows in d
    dimensions, its own would be singular. Takes 4 · members · classes · (d + d (d + 1) / 2) bytes in a file.
    """

    @classmethod
    def covariances(cls, classes: int) -> int:
        """Return the number of classes."""
        return classes

    def _factorise(self, spreads: list[Tensor]) -> Tensor:
        shared = shrunk_covariance(torch.cat(spreads))
        weight = SHARED_ROWS * len(shared)
        return torch.stack([cholesky((x.T @ x + weight * shared) / (len(x) + weight)) for x in spreads])


class ClassResidualDensity(ClassCovarianceDensity):
    """The largest residual of a column given the others, |x_j − E[x_j | others]|, by the Gaussian of the densest class.

    One wrong cell hardly changes the density of a row of many cells, but it stands out from what the other cells say about it
    (Raymaekers & Rousseeuw 2021). With the precision P = Σ_c⁻¹, where Σ_c is that of `ClassCovarianceDensity`, residuals are
    P (x − μ_c) up to a scale per column: one training row in a hundred has a larger residual than 1.
    """

    def __init__(self) -> None:
        super().__init__()
        self._scales = torch.empty(0)  # [members, d]

    def fit(self, features: Tensor, labels: Tensor) -> Self:
        """Fit training features `[members, n, d]` with labels `[n]`."""
        super().fit(features, labels)
        residuals = self._residuals(features[:, :: -(-features.shape[1] // SCALE_ROWS)])
        self._scales = (
            residuals.kthvalue(math.ceil(SCALE_SHARE * residuals.shape[1]), dim=1).values.clamp_min(SCALE_FLOOR).float()
        )
        return self

    def score(self, features: Tensor) -> Tensor:
        """Score features `[members, batch, d]` as `[batch]`; the Gaussians move to their device and stay there."""
        largest = (self._residuals(features) / self._scales.to(features.device)[:, None]).amax(dim=-1)
        return largest.mean(dim=0).to(torch.promote_types(features.dtype, torch.float32))

    def _residuals(self, features: Tensor) -> Tensor:
        """Return |P (x − μ)| / √P_jj, `[members, batch, d]`."""
        gaussians = self._on(features)
        centred = features.double() - gaussians.centre
        return torch.stack([_densest_residuals(*member) for member in zip(centred, *gaussians[1:], strict=True)])

    def state(self) -> dict[str, Tensor]:
        """Return means, packed Cholesky factors and scales in float32."""
        return super().state() | {"scales": self._scales.cpu()}

    @classmethod
    def from_state(cls, state: Mapping[str, Tensor]) -> Self:
        """Restore the density that `state` describes."""
        density = super().from_state(state)
        density._scales = state["scales"]
        return density


class RelativeMahalanobis(Density):
    """−max_c log N(x; μ_c, Σ) + log N(x; μ, Σ₀): half of min_c MD_c² − MD₀², up to a constant (Ren et al. 2021).

    Directions in which all classes vary alike cancel, so that it finds near outliers which the distance itself misses.
    """

    def __init__(self) -> None:
        self.classes, self.background = ClassGaussianDensity(), ClassGaussianDensity()

    @classmethod
    def covariances(cls, classes: int) -> int:
        """Return 2: one within the classes, one over all inputs."""
        return 2

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


def shrunk_covariance(spread: Tensor) -> Tensor:
    """Return the shrunk covariance `[d, d]` of centred features `[n, d]`."""
    covariance = spread.T @ spread / len(spread)
    weight = _shrinkage_weight(covariance, len(spread))
    shrunk = (1 - weight) * covariance
    shrunk.diagonal().add_(weight * covariance.trace() / len(covariance))
    return shrunk


def _shrinkage_weight(covariance: Tensor, n: int) -> float:
    dimension = len(covariance)
    squares = covariance.square().mean()
    level = covariance.trace().square() / dimension**2
    weight = (squares + level) / ((n + 1) * (squares - level / dimension))
    return min(1.0, float(weight))


def cholesky(covariance: Tensor) -> Tensor:
    """Factorise a covariance; refuse a singular one."""
    factor: Tensor
    factor, failed = torch.linalg.cholesky_ex(covariance)
    if int(failed):
        raise InputError("features have a singular covariance: use features that vary within their class")
    return factor


def _prepare(means: Tensor, factors: Tensor) -> _Prepared:
    """Prepare means `[members, classes, d]` and Cholesky factors `[members, 1 or classes, d, d]`."""
    centre = means.mean(dim=1, keepdim=True)
    whitening = torch.linalg.solve_triangular(factors, torch.eye(means.shape[2]).to(factors), upper=False)
    white = (means - centre).unflatten(1, (factors.shape[1], -1)) @ whitening.mT
    origins = white.mean(dim=2, keepdim=True)
    constants = factors.diagonal(dim1=-2, dim2=-1).log().sum(dim=-1) + means.shape[2] * math.log(2 * math.pi) / 2
    return _Prepared(centre, whitening.flatten(1, 2).mT.contiguous(), origins.flatten(1), white - origins, constants)


def _smallest_surprise(centred: Tensor, whitening: Tensor, origins: Tensor, means: Tensor, constants: Tensor) -> Tensor:
    """Return min_c −log N(x; μ_c, LLᵀ) `[batch]` of one member's `[batch, d]`; see `_Prepared`."""
    surprises = []
    for white, own_means, constant in zip(_whitened(centred, whitening, origins), means, constants, strict=True):
        squared = white.square().sum(dim=1)
        if len(own_means) > 1:  # a single mean is the origin
            squared = squared + (own_means.square().sum(dim=1) - 2 * white @ own_means.mT).amin(dim=1)
        surprises.append(squared / 2 + constant)
    return torch.stack(surprises).amin(dim=0)


def _densest_residuals(centred: Tensor, whitening: Tensor, origins: Tensor, means: Tensor, constants: Tensor) -> Tensor:
    """Return the residuals `[batch, d]` by the Gaussian that is densest, one per class; see `_Prepared`."""
    least, residuals = torch.full_like(centred[:, 0], math.inf), torch.zeros_like(centred)
    of_classes = zip(_whitened(centred, whitening, origins), whitening.split(centred.shape[1], dim=1), constants, strict=True)
    for white, own, constant in of_classes:
        surprise = white.square().sum(dim=1) / 2 + constant
        residuals = torch.where((surprise < least)[:, None], white @ F.normalize(own, dim=1).mT, residuals)
        least = torch.minimum(least, surprise)
    return residuals.abs()


def _whitened(centred: Tensor, whitening: Tensor, origins: Tensor) -> Iterator[Tensor]:
    """Yield rows `[batch, d]` whitened by one covariance after the other: what is written stays in the processor's cache."""
    d = centred.shape[1]
    for own, origin in zip(whitening.split(d, dim=1), origins.split(d), strict=True):
        yield torch.addmm(-origin, centred, own)
