"""How well scores separate known from unknown inputs. Everywhere: higher score = more out-of-distribution.

There are two conventions for both FPR95 and AUPR, so each is computed both ways and named.
"""

from typing import TypedDict

import numpy as np
import numpy.typing as npt

from besnn.checks import check_fractions
from besnn.detection.conformal import Interval
from besnn.errors import InputError
from besnn.evaluation.checks import FloatArray, IntArray, as_scores


class OODFigures(TypedDict):
    """The figures of one in-distribution set against one OOD set."""

    auroc: float
    aupr_in: float
    aupr_out: float
    fpr95: float
    fpr95_ood: float


class OODMetrics(OODFigures):
    """The figures with the sizes of the sets, which AUPR depends on."""

    n_in: int
    n_out: int


def ood_metrics(in_scores: npt.ArrayLike, out_scores: npt.ArrayLike) -> OODMetrics:
    """Compute AUROC, AUPR both ways and FPR95 both ways, of in-distribution scores ``[n_in]`` and OOD scores ``[n_out]``.

    - ``auroc``: probability that an OOD input scores above an in-distribution one, ties counting one half.
    - ``aupr_in``, ``aupr_out``: average precision with in-distribution or OOD as the positive class. Both depend on
      the set sizes, which is why ``n_in`` and ``n_out`` come with them.
    - ``fpr95``: the share of OOD accepted when 95 % of in-distribution is accepted (the paper's).
    - ``fpr95_ood``: the share of in-distribution flagged when 95 % of OOD is caught.

    For ``fpr95`` the threshold is the smallest one that accepts *at least* 95 % of the in-distribution inputs, and
    inputs that tie with it are accepted together; ``fpr95_ood`` is its mirror image. Nothing is interpolated.

    >>> figures = ood_metrics([0.1, 0.2, 0.3, 0.4], [0.35, 0.8, 0.9, 0.9])
    >>> figures["auroc"], figures["fpr95"], figures["fpr95_ood"]
    (0.9375, 0.25, 0.25)
    """
    in_ranks, out_ranks = dense_ranks(in_scores, out_scores)
    distinct = 1 + max(in_ranks.max(), out_ranks.max())
    figures = figures_of_counts(np.bincount(in_ranks, minlength=distinct), np.bincount(out_ranks, minlength=distinct))
    return OODMetrics(**figures, n_in=in_ranks.size, n_out=out_ranks.size)


def openood_metrics(in_scores: npt.ArrayLike, out_scores: npt.ArrayLike) -> dict[str, float]:
    """Compute the figures by OpenOOD's conventions: OOD positive, FPR at 95 % of OOD caught, trapezoidal AUPR, in percent.

    >>> openood_metrics([0.1, 0.2, 0.3, 0.4], [0.35, 0.8, 0.9, 0.9])["FPR@95"]
    25.0
    """
    from sklearn.metrics import auc, precision_recall_curve, roc_curve  # slow to import

    is_ood, ranks = _as_ranking_problem(in_scores, out_scores)
    false_alarms, caught, _ = roc_curve(is_ood, ranks)
    precision_in, recall_in, _ = precision_recall_curve(1 - is_ood, -ranks)
    precision_out, recall_out, _ = precision_recall_curve(is_ood, ranks)
    figures = {
        "FPR@95": false_alarms[np.argmax(caught >= 0.95)],
        "AUROC": auc(false_alarms, caught),
        "AUPR_IN": auc(recall_in, precision_in),
        "AUPR_OUT": auc(recall_out, precision_out),
    }
    return {name: 100 * float(figure) for name, figure in figures.items()}


def dense_ranks(in_scores: npt.ArrayLike, out_scores: npt.ArrayLike) -> tuple[IntArray, IntArray]:
    """Return the ranks of both sets among their distinct scores, ``[n_in]`` and ``[n_out]``, from 0."""
    inside, outside = as_scores(in_scores, "in_scores"), as_scores(out_scores, "out_scores")
    ranks = np.unique(np.concatenate([inside, outside]), return_inverse=True)[1]
    return ranks[: inside.size], ranks[inside.size :]


def figures_of_counts(in_counts: IntArray, out_counts: IntArray) -> OODFigures:
    """Compute the figures from how often each distinct score occurs, ``[distinct scores]``, by ascending score."""
    in_below = np.cumsum(in_counts) - in_counts / 2  # ties count one half
    aupr_in, fpr95 = _average_precision_and_fpr(in_counts, out_counts)
    aupr_out, fpr95_ood = _average_precision_and_fpr(out_counts[::-1], in_counts[::-1])
    auroc = float((out_counts * in_below).sum() / (in_counts.sum() * out_counts.sum()))
    return OODFigures(auroc=auroc, aupr_in=aupr_in, aupr_out=aupr_out, fpr95=fpr95, fpr95_ood=fpr95_ood)


def _average_precision_and_fpr(positives: IntArray, negatives: IntArray) -> tuple[float, float]:
    """Compute average precision and FPR at 95 % recall from counts, where the first counts are predicted positive first."""
    true, false = np.cumsum(positives), np.cumsum(negatives)
    precision = true / np.maximum(true + false, 1)  # scores that do not occur have no weight below
    enough = np.searchsorted(true, required_positives(int(true[-1])))
    return float((positives * precision).sum() / true[-1]), float(false[enough] / false[-1])


def required_positives(n: int) -> int:
    """Return the smallest count that is at least 95 % of n, in integers (0.95 has no exact float)."""
    return -(-95 * n // 100)


def ood_intervals(
    in_scores: npt.ArrayLike, out_scores: npt.ArrayLike, resamples: int = 1000, level: float = 0.95, seed: int = 0
) -> dict[str, Interval]:
    """Compute bootstrap percentile intervals of all five figures of `ood_metrics`, in one pass.

    >>> ood_intervals([0.1, 0.2, 0.3], [0.7, 0.8, 0.9], resamples=50)["auroc"]
    Interval(low=1.0, high=1.0)
    """
    check_fractions(level=level)
    if resamples < 1:
        raise InputError(f"resamples={resamples}: give at least 1, and 200 or more for a stable interval")
    # The scores are sorted once: a resample changes only how often each distinct score occurs.
    in_ranks, out_ranks = dense_ranks(in_scores, out_scores)
    distinct = 1 + max(in_ranks.max(), out_ranks.max())
    generator = np.random.default_rng(seed)

    def resampled(ranks: IntArray) -> IntArray:
        return np.bincount(ranks[generator.integers(0, ranks.size, size=ranks.size)], minlength=distinct)

    drawn = [tuple(figures_of_counts(resampled(in_ranks), resampled(out_ranks)).values()) for _ in range(resamples)]
    tail = 100 * (1 - level) / 2
    low, high = np.percentile(np.array(drawn, dtype=np.float64), [tail, 100 - tail], axis=0).tolist()
    return {name: Interval(*ends) for name, *ends in zip(OODFigures.__annotations__, low, high, strict=True)}


def roc_points(in_scores: npt.ArrayLike, out_scores: npt.ArrayLike) -> tuple[FloatArray, FloatArray]:
    """Return the ROC curve: share of in-distribution flagged, and of OOD caught, as the threshold falls."""
    from sklearn.metrics import roc_curve  # slow to import

    false_alarms, caught, _ = roc_curve(*_as_ranking_problem(in_scores, out_scores))
    return false_alarms, caught


def precision_recall_points(in_scores: npt.ArrayLike, out_scores: npt.ArrayLike) -> tuple[FloatArray, FloatArray]:
    """Return the precision-recall curve with OOD as the positive class: recall and precision as the threshold falls."""
    from sklearn.metrics import precision_recall_curve  # slow to import

    precision, recall, _ = precision_recall_curve(*_as_ranking_problem(in_scores, out_scores), drop_intermediate=True)
    return recall[::-1], precision[::-1]


def _as_ranking_problem(in_scores: npt.ArrayLike, out_scores: npt.ArrayLike) -> tuple[IntArray, IntArray]:
    """Return labels (1 = OOD) and dense ranks ``[n_in + n_out]``: same order and ties, but finite, as scikit-learn requires."""
    ranks = dense_ranks(in_scores, out_scores)
    return np.repeat([0, 1], [ranks[0].size, ranks[1].size]), np.concatenate(ranks)
