"""Nearest neighbours: an input is unusual where training features are far away."""

from collections.abc import Iterable, Mapping
from typing import Literal, Self, get_args

import torch
from torch import Tensor
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
        queries = self._queries(features)
        squared = self._squared_by_product(queries) if torch.compiler.is_exporting() else self._squared(queries)
        # Between unit vectors the squared distance is 2 (1 − cos).
        return (squared / 2 if self.metric == "cosine" else squared.sqrt()).mean(dim=0)

    def score_beyond(self, features: Tensor, limit: float) -> Tensor:
        """Score features `[members, batch, d]` as `[batch]`; what is surely near gets the limit, and is not measured."""
        queries = self._queries(features)
        squared = 2 * limit if self.metric == "cosine" else max(limit, 0.0) ** 2
        near = torch.stack([search.within(own, self.k, squared) for search, own in self._members(queries)])
        far = (~near.all(dim=0)).nonzero()[:, 0]
        score = queries.new_full(queries.shape[1:2], limit)
        score[far] = self.score(features[:, far])
        return score

    def _queries(self, features: Tensor) -> Tensor:
        codes, _ = self._fitted()
        check_same_layer(features, members=codes.shape[0], dimension=codes.shape[2])
        if self._rows.device != features.device:
            self._rows, self._searches = self._rows.to(features.device), []
        return _in_metric(features, self.metric)

    def _members(self, queries: Tensor) -> Iterable[tuple[NeighbourSearch, Tensor]]:
        """Return the search among the rows of each member with its queries."""
        self._searches = self._searches or [NeighbourSearch(rows) for rows in self._rows]
        return zip(self._searches, queries, strict=True)

    def _squared(self, queries: Tensor) -> Tensor:
        """Return the squared distances `[members, batch]` of queries `[members, batch, d]` to their k-th neighbours."""
        members = self._members(queries)
        return torch.stack([search.kth_squared_distance(own, self.k) for search, own in members])

    def _squared_by_product(self, queries: Tensor) -> Tensor:
        """Rank the rows by a matrix product, which cancels near zero, and measure the few around the k-th: this exports."""
        members, stored, _ = self._rows.shape
        below = min(EXPORT_SPARE, self.k - 1)
        closeness = queries @ self._rows.mT - self._rows.square().sum(dim=-1)[:, None] / 2  # [members, batch, stored]
        places = closeness.topk(min(self.k + EXPORT_SPARE, stored), dim=-1).indices[..., self.k - 1 - below :]
        first = torch.arange(0, members * stored, stored, device=queries.device)[:, None, None]
        squared = (queries[:, :, None] - self._rows.flatten(0, 1)[places + first]).square().sum(dim=-1)
        return squared.topk(below + 1, dim=-1, largest=False).values[..., -1]

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
