"""How sure a rate is: exact binomial intervals."""

from typing import NamedTuple

from scipy.special import betaincinv

from besnn.errors import InputError


class Interval(NamedTuple):
    """A confidence interval."""

    low: float
    high: float


def binomial_interval(successes: int, trials: int, level: float = 0.95) -> Interval:
    """Clopper–Pearson interval of a rate: covers the true rate with probability at least ``level``.

    >>> low, high = binomial_interval(5, 100)
    >>> round(low, 4), round(high, 4)
    (0.0164, 0.1128)
    """
    check_level(level)
    if not 0 <= successes <= trials or trials < 1:
        raise InputError(f"{successes} successes in {trials} trials: give 0 ≤ successes ≤ trials, trials ≥ 1")
    tail = (1 - level) / 2
    low = betaincinv(successes, trials - successes + 1, tail) if successes else 0.0
    high = betaincinv(successes + 1, trials - successes, 1 - tail) if successes < trials else 1.0
    return Interval(float(low), float(high))


def check_level(level: float) -> None:
    """Refuse a confidence level outside (0, 1).

    >>> check_level(0.95)
    """
    if not 0 < level < 1:
        raise InputError(f"level={level}: give a confidence level between 0 and 1, such as 0.95")
