"""One score of several: each tells how surprising an input is to it, and the surprises are added."""

from collections.abc import Mapping
from typing import Self

import torch
from torch import Tensor

from besnn.detection.tail import EmpiricalTail
from besnn.errors import InputError


class CombinedScore:
    """Fisher's combination Σ −log p of several scores, p being each one's tail probability among reference scores.

    An entropy sees inputs between the classes, a density inputs away from all data; as −log p they share a scale whatever
    their units. Calibrate the combination like any other score, with `ConformalThreshold`.

    Its guarantee then holds, however the scores depend on each other: with the reference given, the combination is a fixed
    function of the input, so calibration inputs and new ones stay exchangeable under it. For that the reference must be
    apart from the calibration set, whose inputs would otherwise be ranked among themselves and new ones not. Keep it
    apart from the training set too: to a density its own training features look more ordinary than any new input.

    Args:
        reference: `{name: [n]}`, scores of in-distribution inputs kept for this.

    Example:
        >>> ordinary = torch.arange(99.0)
        >>> combined = CombinedScore({"entropy": ordinary, "density": ordinary})
        >>> combined.score({"entropy": torch.tensor([50.0, 98.0, 50.0]), "density": torch.tensor([50.0, 98.0, 150.0])})
        tensor([ 1.3863,  7.8240, 21.9385])
    """

    def __init__(self, reference: Mapping[str, Tensor]) -> None:
        if not reference:
            raise InputError("there are no reference scores: pass {name: scores of held-out in-distribution inputs}")
        # in one order, whatever a file's: sums of three and more depend on it in their last digit
        self._tails = {name: EmpiricalTail(scores) for name, scores in sorted(reference.items())}

    @property
    def reference(self) -> dict[str, Tensor]:
        """The reference scores by name, each sorted."""
        return {name: tail.reference for name, tail in self._tails.items()}

    def score(self, scores: Mapping[str, Tensor]) -> Tensor:
        """Scores `{name: [batch]}`, with the reference's names, to the combined score `[batch]`, ≥ 0."""
        if scores.keys() != self._tails.keys():
            raise InputError(f"scores are {sorted(scores)}, the reference has {sorted(self._tails)}: pass the same ones")
        return torch.stack([tail.surprise(scores[name]) for name, tail in self._tails.items()]).sum(dim=0)

    def state(self) -> dict[str, Tensor]:
        """What `from_state` needs."""
        return self.reference

    @classmethod
    def from_state(cls, state: Mapping[str, Tensor]) -> Self:
        """The combination that `state` came from."""
        return cls(state)
