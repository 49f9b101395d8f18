"""Nearest neighbours: an input is unusual where training features are far away."""

from collections.abc import Mapping
from typing import Literal, Self, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from besnn.detection.densities.density import Density, DensitySettings, check_features, check_same_layer
from besnn.detection.densities.neighbour_search import NeighbourSearch
from besnn.errors import InputError, NotReadyError

Metric = Literal["cosine", "euclidean"]
METRICS: tuple[Metric, ...] = get_args(Metric)
Storage = Literal["float16", "int8"]
STORAGES: tuple[Storage, ...] = get_args(Storage)

EXPORT_SPARE = 8  # the exported network measures this many neighbours on either side of the k-th


class NearestNeighbourDensity(Density):
    """Distance to the k-th nearest training feature, averaged over the members (Sun et al. 2022).

    Takes members · rows · (d + 4) bytes in a file with int8 storage, and about twice that with float16. In memory each number
    takes 4 bytes more, and 5 to 9 once it has scored. Scoring takes members · batch · rows · d multiplications.

    Args:
        k: which neighbour; with `max_rows`, among the rows that were kept.
        metric: `"cosine"` (1 − cos, of any length) or `"euclidean"`.
        storage: `"float16"` or `"int8"`, see `encode_rows`.
        max_rows: keep a random subset of this many training inputs; None keeps all.

    >>> training = torch.tensor([[[1.0, 0.0], [0.0, 1.0]]])  # [members, n, d]
    >>> density = NearestNeighbourDensity(k=1).fit(training)
    >>> density.score(torch.tensor([[[3.0, 0.0], [-1.0, 0.0]]]))
    tensor([0., 1.])
    """

    def __init__(
        self,
        k: int = 20,
        metric: Metric = "cosine",
        storage: Storage = "float16",
        max_rows: int | None = None,
        seed: int = 0,
    ) -> None:
        self.k = k
        self.metric = metric
        self.storage = storage
        self.max_rows = max_rows
        self.seed = seed
        self._codes: Tensor | None = None  # [members, rows, d]
        self._scale: Tensor | None = None  # [members, rows, 1]
        self._rows = torch.empty(0)  # codes · scale
        self._searches: list[NeighbourSearch] = []  # of each member's rows, on the device of the last features

    @classmethod
    def from_settings(cls, settings: DensitySettings) -> Self:
        """Make a density that stores the recipe's number of rows, in 8 bits."""
        return cls(settings.neighbour, storage="int8", max_rows=settings.stored_rows)

    def fit(self, features: Tensor, labels: Tensor | None = None) -> Self:
        """Store training features `[members, n, d]`; labels are not used."""
        check_features(features)
        if self.metric not in METRICS:
            raise InputError(f"metric={self.metric!r} is unknown: use one of {METRICS}")
        if self.storage not in STORAGES:
            raise InputError(f"storage={self.storage!r} is unknown: use one of {STORAGES}")
        rows = features.shape[1]
        if self.max_rows is not None and self.max_rows < rows:
            kept = torch.randperm(rows, generator=torch.Generator().manual_seed(self.seed))[: self.max_rows]
            features = features[:, kept.to(features.device)]
        if not 1 <= self.k <= features.shape[1]:
            raise InputError(f"k={self.k} is out of range: choose it from 1 to {features.shape[1]}, the stored features")
        self._store(*encode_rows(_in_metric(features, self.metric), self.storage))
        return self

    def score(self, features: Tensor) -> Tensor:
        """Score features `[members, batch, d]` as `[batch]`; the stored rows move to their device and stay there."""
        codes, _ = self._fitted()
        check_same_layer(features, members=codes.shape[0], dimension=codes.shape[2])
        if not self._searches or self._rows.device != features.device:
            self._rows = self._rows.to(features.device)
            self._searches = [NeighbourSearch(rows) for rows in self._rows]
        members = zip(self._searches, _in_metric(features, self.metric), strict=True)
        squared = torch.stack([search.kth_squared_distance(queries, self.k) for search, queries in members])
        return _from_squared(squared, self.metric).mean(dim=0)

    def __getstate__(self) -> dict[str, object]:
        # The searches cannot be copied once they are laid out for a CPU's instructions.
        return {**self.__dict__, "_searches": []}

    def state(self) -> dict[str, Tensor]:
        """Return the stored rows, k and the metric."""
        codes, scale = self._fitted()
        metric = torch.tensor(METRICS.index(self.metric))
        return {"codes": codes, "scale": scale, "k": torch.tensor(self.k), "metric": metric}

    @classmethod
    def from_state(cls, state: Mapping[str, Tensor]) -> Self:
        """Restore the density that `state` describes."""
        codes = state["codes"]
        storage: Storage = "int8" if codes.dtype == torch.int8 else "float16"
        density = cls(k=int(state["k"]), metric=METRICS[int(state["metric"])], storage=storage)
        density._store(codes, state["scale"])
        return density

    def network(self) -> nn.Module:
        """Return `score` as a network that exports."""
        self._fitted()
        return _NearestNeighbourNetwork(self._rows.cpu(), self.k, self.metric)

    def _store(self, codes: Tensor, scale: Tensor) -> None:
        self._codes, self._scale = codes.cpu(), scale.cpu()
        # On the CPU, wherever they come from: the rows then equal those read from a file to the last bit.
        self._rows = _in_metric(decode_rows(self._codes, self._scale), self.metric)
        self._searches = []

    def _fitted(self) -> tuple[Tensor, Tensor]:
        if self._codes is None or self._scale is None:
            raise NotReadyError("the density is not fitted: call fit(features) with training features first")
        return self._codes, self._scale


def _in_metric(features: Tensor, metric: Metric) -> Tensor:
    """Return features in float32, of unit length where only the direction counts."""
    return F.normalize(features.float(), dim=-1) if metric == "cosine" else features.float()


def _from_squared(squared: Tensor, metric: Metric) -> Tensor:
    """Turn ‖q − r‖² into the metric's distance; between unit vectors it is 2 (1 − cos)."""
    return squared / 2 if metric == "cosine" else squared.sqrt()


class _NearestNeighbourNetwork(nn.Module):
    """Ranks by a matrix product, which cancels near zero, and measures the few rows around the k-th."""

    rows: Tensor
    half_squares: Tensor
    first: Tensor

    def __init__(self, rows: Tensor, k: int, metric: Metric) -> None:
        super().__init__()
        members, stored, dimension = rows.shape
        self.metric: Metric = metric
        self.below = min(EXPORT_SPARE, k - 1)
        self.count = min(k + EXPORT_SPARE, stored)
        self.nearer = k - 1 - self.below  # this many are taken to be nearer than the k-th
        self.register_buffer("rows", rows.reshape(-1, dimension))
        self.register_buffer("half_squares", rows.square().sum(dim=-1)[:, None] / 2)
        self.register_buffer("first", torch.arange(0, members * stored, stored)[:, None, None])

    def forward(self, features: Tensor) -> Tensor:
        features = _in_metric(features, self.metric)
        rows = self.rows.unflatten(0, (len(self.first), -1))
        closeness = features @ rows.transpose(1, 2) - self.half_squares  # [members, batch, stored]
        places = closeness.topk(self.count, dim=-1).indices[..., self.nearer :] + self.first
        squared = (features[:, :, None] - self.rows[places]).square().sum(dim=-1)
        kth = squared.topk(self.below + 1, dim=-1, largest=False).values[..., -1]
        return _from_squared(kth, self.metric).mean(dim=0)


def encode_rows(rows: Tensor, storage: Storage) -> tuple[Tensor, Tensor]:
    """Encode rows `[..., d]` as codes `[..., d]` times a float32 scale per row `[..., 1]`, which uses the codes' full range.

    The error of a number is at most 2⁻¹¹ of itself in float16, and 1/254 of the largest in its row in int8.
    """
    rows = rows.float()
    largest = rows.abs().amax(dim=-1, keepdim=True)
    scale = torch.where(largest > 0, largest, 1.0)
    if storage == "float16":
        return (rows / scale).half(), scale
    scale = scale / 127
    return (rows / scale).round().to(torch.int8), scale


def decode_rows(codes: Tensor, scale: Tensor) -> Tensor:
    """Decode rows that `encode_rows` encoded, in float32."""
    return codes.float() * scale
