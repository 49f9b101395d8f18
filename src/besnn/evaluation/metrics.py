"""How well scores tell known from unknown inputs. Everywhere: higher score = more out-of-distribution.

Two conventions exist for both FPR95 and AUPR, so each is computed both ways and named.
"""

from typing import TypedDict

import numpy as np
import numpy.typing as npt
from sklearn.metrics import average_precision_score, precision_recall_curve, roc_auc_score, roc_curve

from besnn.evaluation.arrays import FloatArray, IntArray, as_scores

_SHARE_ACCEPTED_PERCENT = 95


class OODMetrics(TypedDict):
    """The figures of one in-distribution set against one OOD set."""

    auroc: float
    aupr_in: float
    aupr_out: float
    fpr95: float
    fpr95_ood: float
    n_in: int
    n_out: int


def ood_metrics(in_scores: npt.ArrayLike, out_scores: npt.ArrayLike) -> OODMetrics:
    """AUROC, AUPR both ways and FPR95 both ways, ties handled exactly.

    - ``auroc``: chance that an OOD input scores above an in-distribution one, ties counting one half.
    - ``aupr_in``, ``aupr_out``: average precision with in-distribution or OOD as the positive class. Both depend on
      the set sizes, hence ``n_in`` and ``n_out`` beside them.
    - ``fpr95``: the share of OOD accepted when 95 % of in-distribution is accepted (the paper's).
    - ``fpr95_ood``: the share of in-distribution flagged when 95 % of OOD is caught.

    For ``fpr95`` the threshold is the smallest one that accepts *at least* 95 % of the in-distribution inputs, and
    inputs that tie with it are accepted together; ``fpr95_ood`` is its mirror image. Nothing is interpolated.

    Args:
        in_scores: ``[n_in]``, scores of in-distribution inputs. Infinities are allowed, NaN is not.
        out_scores: ``[n_out]``, scores of OOD inputs.

    >>> figures = ood_metrics([0.1, 0.2, 0.3, 0.4], [0.35, 0.8, 0.9, 0.9])
    >>> figures["auroc"], figures["fpr95"], figures["fpr95_ood"]
    (0.9375, 0.25, 0.25)
    """
    inside, outside = as_scores(in_scores, "in_scores"), as_scores(out_scores, "out_scores")
    is_out, ranks = _as_ranking_problem(inside, outside)
    return OODMetrics(
        auroc=float(roc_auc_score(is_out, ranks)),
        aupr_in=float(average_precision_score(1 - is_out, -ranks)),
        aupr_out=float(average_precision_score(is_out, ranks)),
        fpr95=_false_positive_rate(positives=inside, negatives=outside),
        fpr95_ood=_false_positive_rate(positives=-outside, negatives=-inside),
        n_in=inside.size,
        n_out=outside.size,
    )


def required_positives(n: int) -> int:
    """The least count that is at least 95 % of n, in whole numbers (0.95 has no exact float).

    >>> required_positives(20), required_positives(21)
    (19, 20)
    """
    return -(-_SHARE_ACCEPTED_PERCENT * n // 100)


def roc_points(in_scores: npt.ArrayLike, out_scores: npt.ArrayLike) -> tuple[FloatArray, FloatArray]:
    """The ROC curve: share of in-distribution flagged, and of OOD caught, as the threshold falls.

    >>> false_alarms, caught = roc_points([0.1, 0.2], [0.3, 0.4])
    >>> false_alarms.tolist(), caught.tolist()
    ([0.0, 0.0, 0.0, 1.0], [0.0, 0.5, 1.0, 1.0])
    """
    is_out, ranks = _as_ranking_problem(as_scores(in_scores, "in_scores"), as_scores(out_scores, "out_scores"))
    false_alarms, caught, _ = roc_curve(is_out, ranks)
    return false_alarms, caught


def precision_recall_points(in_scores: npt.ArrayLike, out_scores: npt.ArrayLike) -> tuple[FloatArray, FloatArray]:
    """The precision-recall curve with OOD as the positive class: recall and precision as the threshold falls.

    >>> recall, precision = precision_recall_points([0.1, 0.2], [0.3, 0.4])
    >>> recall.tolist(), precision.tolist()
    ([0.0, 0.5, 1.0, 1.0], [1.0, 1.0, 1.0, 0.5])
    """
    is_out, ranks = _as_ranking_problem(as_scores(in_scores, "in_scores"), as_scores(out_scores, "out_scores"))
    precision, recall, _ = precision_recall_curve(is_out, ranks, drop_intermediate=True)
    return recall[::-1], precision[::-1]


def _as_ranking_problem(inside: FloatArray, outside: FloatArray) -> tuple[IntArray, IntArray]:
    """Labels (1 = OOD) and dense ranks ``[n_in + n_out]``: same order and ties, but finite, as scikit-learn asks."""
    is_out = np.repeat([0, 1], [inside.size, outside.size])
    return is_out, np.unique(np.concatenate([inside, outside]), return_inverse=True)[1]


def _false_positive_rate(positives: FloatArray, negatives: FloatArray) -> float:
    """Share of negatives at or below the smallest threshold that has at least 95 % of positives at or below it."""
    position = required_positives(positives.size) - 1
    threshold = np.partition(positives, position)[position]
    return float(np.mean(negatives <= threshold))
