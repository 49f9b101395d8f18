"""A detector's answers on one set of inputs, as arrays."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

import numpy as np
import numpy.typing as npt

from besnn.errors import InputError
from besnn.evaluation.arrays import FloatArray, IntArray, as_numpy, as_probabilities, as_scores, check_same_length
from besnn.evaluation.intervals import binomial_interval


class Rate(TypedDict):
    """A rate of alarms with its exact 95 % binomial interval."""

    rate: float
    low: float
    high: float
    flagged: int
    n: int


@dataclass(frozen=True, eq=False)
class ScoredSet:
    """A detector's answers on one set of n inputs.

    Args:
        probabilities: ``[n, classes]``.
        scores: score name → ``[n]``; higher = more out-of-distribution.
        p_values: ``[n]``, of the default score.
        is_ood: ``[n]``, the detector's decisions.
        inputs: what was scored, to show the most telling ones: images ``[n, c, h, w]`` or table rows ``[n, d]``.
        names: what each input is called, such as its file name; the row number when absent.

    >>> ScoredSet([[0.1, 0.9]], {"entropy": [0.3]}, p_values=[0.5], is_ood=[False]).predictions
    array([1])
    """

    probabilities: FloatArray
    scores: Mapping[str, FloatArray]
    p_values: FloatArray
    is_ood: npt.NDArray[np.bool_]
    inputs: npt.NDArray[Any] | None = None
    names: Sequence[str] | None = None

    def __post_init__(self) -> None:
        arrays: dict[str, npt.NDArray[Any]] = {
            "probabilities": as_probabilities(self.probabilities, "probabilities"),
            "p_values": as_scores(self.p_values, "p_values"),
            "is_ood": as_scores(self.is_ood, "is_ood") != 0,
        }
        if self.inputs is not None:
            arrays["inputs"] = as_numpy(self.inputs, "inputs")
            if arrays["inputs"].ndim not in (2, 4):
                shape = list(arrays["inputs"].shape)
                raise InputError(f"inputs have shape {shape}: give images [n, c, h, w] or table rows [n, d]")
        scores = {name: as_scores(values, f"score {name!r}") for name, values in self.scores.items()}
        check_same_length(**arrays, **{f"score {name!r}": values for name, values in scores.items()})
        if self.names is not None and len(self.names) != len(arrays["probabilities"]):
            raise InputError(f"{len(self.names)} names for {len(arrays['probabilities'])} inputs: give one an input")
        for name, array in arrays.items():
            object.__setattr__(self, name, array)
        object.__setattr__(self, "scores", scores)

    def __len__(self) -> int:
        return len(self.probabilities)

    @property
    def predictions(self) -> IntArray:
        """The most probable class of each input, ``[n]``."""
        predictions: IntArray = self.probabilities.argmax(axis=1)
        return predictions

    @property
    def flagged(self) -> Rate:
        """The share of inputs that the detector called out-of-distribution."""
        flagged = int(self.is_ood.sum())
        low, high = binomial_interval(flagged, len(self))
        return Rate(rate=flagged / len(self), low=low, high=high, flagged=flagged, n=len(self))

    def name_of(self, row: int) -> str:
        """What to call the input of a row."""
        return f"#{row}" if self.names is None else self.names[row]
