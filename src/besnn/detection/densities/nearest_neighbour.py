"""Feature density by nearest neighbours: an input is strange where training features are far."""

from collections.abc import Mapping
from typing import Literal, Self, get_args

import torch
from torch import Tensor
from torch.nn import functional as F

from besnn.detection.compact import STORAGES, Storage, decode_rows, encode_rows
from besnn.detection.features import check_features, check_same_layer
from besnn.detection.search import NeighbourSearch
from besnn.errors import InputError, NotReadyError

Metric = Literal["cosine", "euclidean"]
METRICS: tuple[Metric, ...] = get_args(Metric)


class NearestNeighbourDensity:
    """Distance to the k-th nearest training feature, averaged over the members (Sun et al. 2022).

    Costs members · rows · (d + 4) bytes in a file with int8 storage, about twice that with float16, and 4 bytes a number
    more in memory, 5 to 9 once it has scored; scoring takes members · batch · rows · d multiplications. `max_rows` bounds both.
    What is stored is what scores, before saving and after.

    Args:
        k: which neighbour; with `max_rows` it counts among the rows that were kept.
        metric: `"cosine"` (1 − cos, of any length) or `"euclidean"`.
        storage: `"float16"` or `"int8"`, see `besnn.detection.compact`.
        max_rows: keep a random subset of so many training inputs; None keeps all.
        seed: of that subset.

    Example:
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
        self._rows = torch.empty(0)  # the two decoded
        self._searches: list[NeighbourSearch] = []  # of each member's rows, on the device of the last features

    def fit(self, features: Tensor, labels: Tensor | None = None) -> Self:
        """Stores training features `[members, n, d]`; labels are not used."""
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
            raise InputError(f"k={self.k} is not one of {features.shape[1]} stored features: choose a smaller k, at least 1")
        self._store(*encode_rows(self._in_metric(features), self.storage))
        return self

    def score(self, features: Tensor) -> Tensor:
        """Features `[members, batch, d]` to `[batch]`; what is stored moves to their device and stays there."""
        codes, _ = self._fitted()
        check_same_layer(features, members=codes.shape[0], dimension=codes.shape[2])
        if not self._searches or self._rows.device != features.device:
            self._rows = self._rows.to(features.device)
            self._searches = [NeighbourSearch(rows) for rows in self._rows]
        members = zip(self._searches, self._in_metric(features), strict=True)
        squared = torch.stack([search.kth_squared_distance(queries, self.k) for search, queries in members])
        # Between unit vectors ‖q − r‖² = 2 (1 − cos).
        distances = squared / 2 if self.metric == "cosine" else squared.sqrt()
        return distances.mean(dim=0)

    def __getstate__(self) -> dict[str, object]:
        """What a copy gets: it makes searches of its own, since those laid out for a CPU's instructions cannot be copied."""
        return {**self.__dict__, "_searches": []}

    def state(self) -> dict[str, Tensor]:
        """What `from_state` needs, as tensors on the CPU that a file can hold."""
        codes, scale = self._fitted()
        return {
            "codes": codes,
            "scale": scale,
            "k": torch.tensor(self.k),
            "metric": torch.tensor(METRICS.index(self.metric)),
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Tensor]) -> Self:
        """The density that `state` came from."""
        codes = state["codes"]
        storage: Storage = "int8" if codes.dtype == torch.int8 else "float16"
        density = cls(k=int(state["k"]), metric=METRICS[int(state["metric"])], storage=storage)
        density._store(codes, state["scale"])
        return density

    def _store(self, codes: Tensor, scale: Tensor) -> None:
        self._codes, self._scale = codes.cpu(), scale.cpu()
        # on the CPU, wherever they come from: so they are the same to the last bit as when a file is read
        self._rows = self._in_metric(decode_rows(self._codes, self._scale))
        self._searches = []

    def _fitted(self) -> tuple[Tensor, Tensor]:
        if self._codes is None or self._scale is None:
            raise NotReadyError("the density holds no features yet: call fit(features) with training features first")
        return self._codes, self._scale

    def _in_metric(self, features: Tensor) -> Tensor:
        """Features in float32, of unit length where only the direction counts."""
        return F.normalize(features.float(), dim=-1) if self.metric == "cosine" else features.float()
