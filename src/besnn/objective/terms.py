"""The terms of an objective: which are active, and how much each weighs."""

import math
from collections.abc import Mapping

from besnn.errors import InputError
from besnn.objective.choices import check_choice


def check_weights(**weights: float) -> None:
    """Refuses a weight that is negative, infinite or NaN."""
    for name, weight in weights.items():
        if not 0 <= weight < math.inf:
            raise InputError(f"{name}={weight}: pass a finite number of 0 or more")


def active_terms(weights: Mapping[str, float], factors: Mapping[str, float] | None) -> dict[str, float]:
    """Weight times factor of each term that is not switched off.

    Args:
        weights: the weight of each term of the objective, by its name.
        factors: what multiplies a term at this step; 1 where absent.

    Returns:
        The terms to compute, with what multiplies them.

    >>> active_terms({"classification": 1.0, "gradient": 0.5}, factors={"gradient": 4.0})
    {'classification': 1.0, 'gradient': 2.0}
    >>> active_terms({"classification": 1.0, "gradient": 0.5}, factors={"gradient": 0.0})
    {'classification': 1.0}
    """
    factors = factors or {}
    for name in factors:
        check_choice("factor", name, tuple(weights))
    weighted = {name: weight * factors.get(name, 1.0) for name, weight in weights.items()}
    return {name: weight for name, weight in weighted.items() if weight}
