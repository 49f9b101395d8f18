"""Why an input is not known: the training examples nearest to it, and the parts of an image that make it strange."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from besnn.detection.densities.nearest_neighbour import decode_rows, encode_rows
from besnn.errors import InputError

PATCH_SHARE = 1 / 6
"""The side of what is occluded at a time, as a share of the image's shorter side; patches overlap by half."""


class Nearest(NamedTuple):
    """The k examples nearest to each input, `[batch, k]`, nearest first."""

    rows: Tensor
    distances: Tensor  # 1 − cos of the features, averaged over the members


class Examples:
    """Some training inputs, with features by which the nearest ones are found.

    Args:
        inputs: thumbnails `uint8 [n, c, h, w]`, or rows `float32 [n, columns]`.
        labels: class indices `[n]`.
        codes, scale: features of unit length in each member, `[members, n, d]` and `[members, n, 1]`; see `encode_rows`.
    """

    def __init__(self, inputs: NDArray[Any], labels: NDArray[np.int64], codes: Tensor, scale: Tensor) -> None:
        if len(inputs) != len(labels) or codes.ndim != 3 or codes.shape[1] != len(inputs):
            found = f"{len(inputs)} examples, {len(labels)} labels and features {list(codes.shape)}"
            raise InputError(f"{found}: give one of each per example")
        self.inputs, self.labels, self.codes, self.scale = inputs, labels, codes.cpu(), scale.cpu()
        self._rows: Tensor | None = None

    @classmethod
    def of(cls, inputs: NDArray[Any], labels: NDArray[np.int64], features: Tensor) -> Self:
        """Keep examples with features `[members, n, d]`."""
        return cls(inputs, labels, *encode_rows(F.normalize(features.float(), dim=-1), "int8"))

    def __len__(self) -> int:
        return len(self.labels)

    def nearest(self, features: Tensor, k: int) -> Nearest:
        """Return the k examples nearest to features `[members, batch, d]`, by as many of them as the examples have."""
        if self._rows is None or self._rows.device != features.device:
            rows = F.normalize(decode_rows(self.codes, self.scale), dim=-1)
            self._rows = rows.to(features.device)
        own = features[..., : self._rows.shape[2]].float()
        cosines = torch.einsum("mbd,mnd->bn", F.normalize(own, dim=-1), self._rows) / len(self._rows)
        best = cosines.topk(min(k, len(self)), dim=1)
        return Nearest(best.indices, (1 - best.values).clamp_min(0))

    def state(self) -> dict[str, Tensor]:
        """Return the tensors from which `from_state` restores the examples."""
        arrays = {"inputs": torch.from_numpy(self.inputs), "labels": torch.from_numpy(self.labels)}
        return {**arrays, "codes": self.codes, "scale": self.scale}

    @classmethod
    def from_state(cls, state: Mapping[str, Tensor]) -> Self:
        """Restore the examples that `state` describes."""
        return cls(state["inputs"].numpy(), state["labels"].numpy(), state["codes"], state["scale"])


def occlusion_map(score: Callable[[Tensor], NDArray[np.float32]], image: Tensor) -> NDArray[np.float32]:
    """Return how much each place of an image `uint8 [c, h, w]` adds to its score, `[h, w]` (Zeiler & Fergus 2014).

    Square patches are blurred away one at a time, and a place gets the mean fall of the score over the patches that cover it.
    `score` takes images `[n, c, h, w]`. It is called once, with about (2 / PATCH_SHARE)² of them, which is about 170.
    """
    height, width = image.shape[1:]
    patch = max(2, round(PATCH_SHARE * min(height, width)))
    blurred = _blurred(image, 2 * patch)
    places = [(y, x) for y in _starts(height, patch) for x in _starts(width, patch)]
    variants = image.repeat(len(places) + 1, 1, 1, 1)
    for variant, (y, x) in zip(variants[1:], places, strict=True):
        variant[:, y : y + patch, x : x + patch] = blurred[:, y : y + patch, x : x + patch]
    scores = score(variants)
    total, count = np.zeros((height, width), np.float32), np.zeros((height, width), np.float32)
    for fall, (y, x) in zip(scores[0] - scores[1:], places, strict=True):
        total[y : y + patch, x : x + patch] += fall
        count[y : y + patch, x : x + patch] += 1
    heat: NDArray[np.float32] = total / count
    return heat


def _starts(length: int, patch: int) -> list[int]:
    """Return where patches begin, half a patch apart, the last one at the end."""
    return sorted({*range(0, max(length - patch, 0) + 1, max(patch // 2, 1)), max(length - patch, 0)})


def _blurred(image: Tensor, width: int) -> Tensor:
    means = F.avg_pool2d(image.float()[None], 2 * width + 1, stride=1, padding=width, count_include_pad=False)
    return means[0].round().to(image.dtype)
