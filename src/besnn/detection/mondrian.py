"""Mondrian conformal thresholds: one a group, so that no group pays for another's false alarms."""

from collections.abc import Callable, Sequence
from typing import Any, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from besnn.detection.arrays import Numbers, as_floating, as_integers, like
from besnn.detection.conformal import ConformalThreshold
from besnn.errors import InputError

Groups = Tensor | Sequence[int] | NDArray[Any]


class MondrianThreshold:
    """A `ConformalThreshold` for every group; its guarantee then holds within each of them.

    The group must be a function of the input alone, such as the *predicted* class; the true one is not known at use.

    Args:
        scores: `[n]` finite calibration scores.
        groups: `[n]` integers, the group of each.
        alpha: the false-alarm rate α within each group.
        delta: δ of the stronger guarantee, for each group by itself, or None.

    Attributes:
        thresholds: `{group: ConformalThreshold}`.

    Example:
        >>> calibration = MondrianThreshold([*range(9), *range(100, 109)], [0] * 9 + [1] * 9, alpha=0.1)
        >>> calibration.is_ood([50.0, 50.0], [0, 1])
        array([ True, False])
    """

    def __init__(self, scores: Tensor | Numbers, groups: Groups, alpha: float = 0.05, delta: float | None = None) -> None:
        values = as_floating(scores, "calibration scores")
        members = _one_group_each(values, groups)
        self.thresholds: dict[int, ConformalThreshold] = {}
        for group in sorted(set(members.tolist())):
            try:
                self.thresholds[group] = ConformalThreshold(values[members == group], alpha, delta)
            except InputError as error:
                raise InputError(f"group {group}: {error}") from None
        if not self.thresholds:
            raise InputError("there are no calibration scores: provide scores of held-out in-distribution inputs")

    @overload
    def p_values(self, scores: Tensor, groups: Groups) -> Tensor: ...
    @overload
    def p_values(self, scores: Numbers, groups: Groups) -> NDArray[np.float64]: ...
    def p_values(self, scores: Tensor | Numbers, groups: Groups) -> Tensor | NDArray[np.float64]:
        """p-values `[batch]`, each against the calibration scores of its own group."""
        values = as_floating(scores, "scores")
        return like(self._by_group(values, groups, ConformalThreshold.p_values, values.dtype), scores)

    @overload
    def is_ood(self, scores: Tensor, groups: Groups) -> Tensor: ...
    @overload
    def is_ood(self, scores: Numbers, groups: Groups) -> NDArray[np.bool_]: ...
    def is_ood(self, scores: Tensor | Numbers, groups: Groups) -> Tensor | NDArray[np.bool_]:
        """Whether each score exceeds its group's threshold, `[batch]`."""
        values = as_floating(scores, "scores")
        return like(self._by_group(values, groups, ConformalThreshold.is_ood, torch.bool), scores)

    def _by_group(
        self, values: Tensor, groups: Groups, answer: Callable[[ConformalThreshold, Tensor], Tensor], dtype: torch.dtype
    ) -> Tensor:
        members = _one_group_each(values, groups)
        result = torch.empty_like(values, dtype=dtype)
        for group in sorted(set(members.tolist())):
            if group not in self.thresholds:
                raise InputError(f"group {group} has no threshold: calibrate with scores of it; known: {[*self.thresholds]}")
            inside = members == group
            result[inside] = answer(self.thresholds[group], values[inside])
        return result


def _one_group_each(values: Tensor, groups: Groups) -> Tensor:
    members = as_integers(groups, "groups").to(values.device)
    if values.ndim != 1 or members.shape != values.shape:
        raise InputError(f"scores {list(values.shape)} and groups {list(members.shape)}: pass one of each for every input")
    return members
