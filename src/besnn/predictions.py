"""What a detector says about a batch of inputs."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Prediction(NamedTuple):
    """What a detector says about one input."""

    label: str
    probability: float
    score: float
    p_value: float
    is_ood: bool


@dataclass(frozen=True)
class Predictions:
    """One row an input.

    Attributes:
        labels: the most probable class's name, `[n]`.
        indices: its index, `[n]`.
        probabilities: `[n, classes]`.
        score: higher = more out-of-distribution, `[n]`.
        p_value: how ordinary: the share of known inputs at least as strange, `[n]`.
        is_ood: whether the input is declared out-of-distribution, `[n]`.
        member_labels: each member's own choice, as indices `[members, n]`.
        member_probabilities: how probable each member holds its own choice, `[members, n]`.
    """

    labels: NDArray[np.str_]
    indices: NDArray[np.int64]
    probabilities: NDArray[np.float32]
    score: NDArray[np.float32]
    p_value: NDArray[np.float64]
    is_ood: NDArray[np.bool_]
    member_labels: NDArray[np.int64]
    member_probabilities: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, rows: slice) -> "Predictions":
        """Some of the rows, without a copy."""
        return Predictions(
            self.labels[rows],
            self.indices[rows],
            self.probabilities[rows],
            self.score[rows],
            self.p_value[rows],
            self.is_ood[rows],
            self.member_labels[:, rows],
            self.member_probabilities[:, rows],
        )

    def __iter__(self) -> Iterator[Prediction]:
        top = self.probabilities.max(axis=1) if len(self) else self.score
        for row in range(len(self)):
            yield Prediction(
                str(self.labels[row]),
                float(top[row]),
                float(self.score[row]),
                float(self.p_value[row]),
                bool(self.is_ood[row]),
            )
