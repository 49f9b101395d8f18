"""Bootstrap percentile intervals: of any metric, and fast for the OOD figures."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from besnn.errors import InputError
from besnn.evaluation.arrays import FloatArray, IntArray, as_numpy, as_scores, check_same_length
from besnn.evaluation.intervals import Interval, check_level
from besnn.evaluation.metrics import required_positives


def bootstrap_interval(
    metric: Callable[..., float],
    *samples: npt.ArrayLike,
    paired: bool = False,
    resamples: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> Interval:
    """Bootstrap percentile interval of any ``metric(*samples)``; rows are redrawn with replacement.

    Args:
        metric: takes the samples, redrawn, and returns a number.
        samples: arrays whose first axis is the inputs.
        paired: whether the samples describe the same inputs (labels and probabilities), so that they are redrawn
            together, or different ones (in- and out-of-distribution scores).
        resamples: how many times to redraw.
        level: the share of resampled figures that the interval spans.
        seed: same seed, same interval.

    >>> from besnn.evaluation import accuracy
    >>> labels, probabilities = [0, 1] * 50, [[0.9, 0.1], [0.2, 0.8]] * 50
    >>> bootstrap_interval(accuracy, labels, probabilities, paired=True)
    Interval(low=1.0, high=1.0)
    """
    arrays = [as_numpy(sample, f"sample {index}") for index, sample in enumerate(samples)]
    for index, array in enumerate(arrays):
        if not len(array):
            raise InputError(f"sample {index} is empty: give at least one input to redraw")
    if paired:
        check_same_length(**{f"sample {index}": array for index, array in enumerate(arrays)})
    generator = np.random.default_rng(seed)

    def redraw() -> list[npt.NDArray[np.generic]]:
        if paired:
            rows = _draw_rows(generator, len(arrays[0]))
            return [array[rows] for array in arrays]
        return [array[_draw_rows(generator, len(array))] for array in arrays]

    return _percentiles(np.array([metric(*redraw()) for _ in range(_checked_resamples(resamples))]), level)


def ood_intervals(
    in_scores: npt.ArrayLike, out_scores: npt.ArrayLike, resamples: int = 1000, level: float = 0.95, seed: int = 0
) -> dict[str, Interval]:
    """Bootstrap percentile intervals of all five figures of `ood_metrics`, in one pass.

    The scores are sorted once. A resample changes only how often each distinct score occurs, and every figure is a
    function of those counts.

    >>> intervals = ood_intervals([0.1, 0.2, 0.3], [0.7, 0.8, 0.9], resamples=50)
    >>> intervals["auroc"]
    Interval(low=1.0, high=1.0)
    """
    inside, outside = as_scores(in_scores, "in_scores"), as_scores(out_scores, "out_scores")
    distinct, group = np.unique(np.concatenate([inside, outside]), return_inverse=True)
    in_group, out_group = group[: inside.size], group[inside.size :]
    generator = np.random.default_rng(seed)

    def redraw(groups: IntArray) -> IntArray:
        return np.bincount(groups[_draw_rows(generator, groups.size)], minlength=distinct.size)

    drawn = [metrics_of_counts(redraw(in_group), redraw(out_group)) for _ in range(_checked_resamples(resamples))]
    return {name: _percentiles(np.array([figures[name] for figures in drawn]), level) for name in drawn[0]}


def metrics_of_counts(in_counts: IntArray, out_counts: IntArray) -> dict[str, float]:
    """The figures of `ood_metrics` from counts ``[distinct scores]``, by rising score.

    >>> metrics_of_counts(np.array([2, 0]), np.array([0, 3]))["auroc"]
    1.0
    """
    in_below = np.cumsum(in_counts) - in_counts / 2  # ties count one half
    aupr_in, fpr95 = _one_way(in_counts, out_counts)
    aupr_out, fpr95_ood = _one_way(out_counts[::-1], in_counts[::-1])
    return {
        "auroc": float((out_counts * in_below).sum() / (in_counts.sum() * out_counts.sum())),
        "aupr_in": aupr_in,
        "aupr_out": aupr_out,
        "fpr95": fpr95,
        "fpr95_ood": fpr95_ood,
    }


def _one_way(positives: IntArray, negatives: IntArray) -> tuple[float, float]:
    """Average precision, and FPR at 95 % recall, where the first of the ordered groups are predicted positive first."""
    true, false = np.cumsum(positives), np.cumsum(negatives)
    precision = true / np.maximum(true + false, 1)  # groups drawn not even once have no weight below
    first_enough = np.searchsorted(true, required_positives(int(true[-1])))
    return float((positives * precision).sum() / true[-1]), float(false[first_enough] / false[-1])


def _draw_rows(generator: np.random.Generator, n: int) -> IntArray:
    return generator.integers(0, n, size=n)


def _percentiles(figures: FloatArray, level: float) -> Interval:
    check_level(level)
    tail = 100 * (1 - level) / 2
    low, high = np.percentile(figures, [tail, 100 - tail])
    return Interval(float(low), float(high))


def _checked_resamples(resamples: int) -> int:
    if resamples < 1:
        raise InputError(f"resamples={resamples}: give at least 1, and 200 or more for a steady interval")
    return resamples
