"""What changes over a run, as pure functions of how far it has come: nothing to save, nothing to restore."""

import math
from collections import Counter

from besnn.recipe.config import RampConfig, ScheduleConfig, TrainingConfig
from besnn.training.graphs import Key, key_of


def learning_rate_factor(schedule: ScheduleConfig, progress: float) -> float:
    """What multiplies the learning rate at `progress` (0 at the first step, 1 after the last).

    >>> [round(learning_rate_factor(ScheduleConfig(name="cosine"), p), 2) for p in (0.0, 0.5, 1.0)]
    [1.0, 0.5, 0.0]
    """
    if progress < schedule.warmup:
        return progress / schedule.warmup
    rest = (progress - schedule.warmup) / (1 - schedule.warmup)
    match schedule.name:
        case "cosine":
            return 0.5 * (1 + math.cos(math.pi * rest))
        case "linear":
            return 1 - rest
        case "step":
            return 0.1 ** sum(progress >= milestone for milestone in schedule.milestones)
        case "constant":
            return 1.0


def ramp_factor(ramp: RampConfig, progress: float) -> float:
    """0 before the ramp starts, 1 from its end on, linear between; with no end after the start it goes up at once."""
    if progress < ramp.start:
        return 0.0
    return 1.0 if progress >= ramp.end else (progress - ramp.start) / (ramp.end - ramp.start)


def term_factors(training: TrainingConfig, step: int, progress: float) -> dict[str, float]:
    """What multiplies each term of the objective at a step; terms that are not named keep their weight."""
    factors = {name: ramp_factor(ramp, progress) for name, ramp in training.ramps.items()}
    every = training.gradient_every
    if every > 1:
        factors["gradient"] = factors.get("gradient", 1.0) * (every if step % every == 0 else 0)
    return factors


def factor_counts(training: TrainingConfig, steps: int) -> Counter[Key]:
    """How many steps of a run have each combination of factors.

    >>> factor_counts(TrainingConfig(gradient_every=4), steps=10)
    Counter({(('gradient', 0.0),): 7, (('gradient', 4.0),): 3})
    """
    return Counter(key_of(term_factors(training, step, step / steps)) for step in range(steps))
