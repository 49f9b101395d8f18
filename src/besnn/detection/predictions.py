"""What a detector says about inputs, and why, as arrays with one row per input."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from besnn.detection.conformal import benjamini_hochberg


class Prediction(NamedTuple):
    """What a detector says about one input."""

    label: str | int
    probability: float
    score: float
    p_value: float
    is_ood: bool
    decision: str


@dataclass(frozen=True)
class Predictions:
    """What a detector says about a batch of inputs, one row per input.

    Attributes:
        labels, indices: name and index of the most probable class, `[n]`; the names are integers if the classes are.
        probabilities: `[n, classes]`, scaled if the detector was calibrated with labels.
        score: higher = more out-of-distribution, `[n]`.
        p_value: the share of known inputs that are at least as unusual, `[n]`.
        is_ood: whether the input is declared out-of-distribution, `[n]`.
        decision: `known`, `unsure` or `unknown` (out-of-distribution), `[n]`.
        label_sets: the classes that an input may have, `[n, classes]` booleans; none for an unknown input.
        member_labels, member_probabilities: the class index that each member predicts and its own probability, `[members, n]`.
    """

    labels: NDArray[np.str_ | np.int64]
    indices: NDArray[np.int64]
    probabilities: NDArray[np.float32]
    score: NDArray[np.float32]
    p_value: NDArray[np.float64]
    is_ood: NDArray[np.bool_]
    decision: NDArray[np.str_]
    label_sets: NDArray[np.bool_]
    member_labels: NDArray[np.int64]
    member_probabilities: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, rows: slice) -> "Predictions":
        """Return some of the rows, without a copy."""
        return Predictions(
            **{name: array[:, rows] if name.startswith("member_") else array[rows] for name, array in vars(self).items()}
        )

    def __iter__(self) -> Iterator[Prediction]:
        columns = self.labels, self.probabilities.max(axis=1), self.score, self.p_value, self.is_ood, self.decision
        return map(Prediction, *(column.tolist() for column in columns))

    def named_label_sets(self, class_names: Sequence[str]) -> list[list[str]]:
        """Return the labels that each input may have, the most probable first."""
        order = np.argsort(-self.probabilities, axis=1, kind="stable")
        inside = np.take_along_axis(self.label_sets, order, axis=1)
        names = [class_names[index] for index in order[inside].tolist()]  # of all rows, one after the other
        ends = inside.sum(axis=1).cumsum().tolist()
        return [names[start:end] for start, end in pairwise([0, *ends])]

    def control_fdr(self, q: float) -> "Predictions":
        """Return the same predictions with the flags of `benjamini_hochberg`: on average at most a share q of them is false.

        The promise is about this batch as a whole. Flagged inputs have no labels; those no longer flagged have one label, and
        are `unsure`: they were not among the inputs that promises about labels are made for.
        """
        is_ood = benjamini_hochberg(self.p_value, q)
        cleared = self.is_ood & ~is_ood
        decision = np.where(is_ood, "unknown", np.where(cleared, "unsure", self.decision))
        one_label = np.eye(self.probabilities.shape[1], dtype=bool)[self.indices]
        label_sets = np.where(cleared[:, None], one_label, self.label_sets) & ~is_ood[:, None]
        return replace(self, is_ood=is_ood, decision=decision, label_sets=label_sets)


@dataclass(frozen=True)
class Explanation:
    """Why a detector decided as it did, one row per input.

    Attributes:
        predictions: what it says.
        neighbours, distances: which of the detector's `examples` are nearest by their features, `[n, k]`, nearest first, and
            how far they are: 1 − cos, averaged over the members.
        surprise: −log p by part of the deciding score, such as the density at a layer, `{part: [n]}`, with p the share of known
            inputs that are at least as strange in this respect; the parts add up to a combined score.
        heat_maps: how much each place of an image adds to the score, `[n, h, w]`; None if not asked for, and for rows.
    """

    predictions: Predictions
    neighbours: NDArray[np.int64]
    distances: NDArray[np.float32]
    surprise: dict[str, NDArray[np.float32]]
    heat_maps: NDArray[np.float32] | None = None

    def __len__(self) -> int:
        return len(self.predictions)
