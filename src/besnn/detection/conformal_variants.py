"""Conformal p-values where the plain ones do not serve: few calibration inputs, or inputs that follow another distribution."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from torch import Tensor

from besnn.checks import Numbers, as_vector
from besnn.errors import InputError

FloatArray = npt.NDArray[np.float64]


def cross_conformal_p_values(scores: Sequence[Tensor | Numbers], held_out_scores: Sequence[Tensor | Numbers]) -> FloatArray:
    """Compute cross-conformal p-values `[batch]`, which use every labelled input for training and for calibration (Vovk 2015).

    Split the data into K folds and train K detectors, each without one fold. `held_out_scores[k]` `[n_k]` are the scores of
    fold k by the detector that has not seen it; `scores[k]` `[batch]` are those of the new inputs by the same detector. Then
    p = (1 + Σ_k #{held-out scores of fold k ≥ score by detector k}) / (n + 1).

    Guarantee: P(p ≤ α) ≤ 2α + 2 (1 − α) (1 − 1/K) / (n/K + 1) for folds of equal size (Barber et al. 2021), and in practice
    about α: twice the rate of split conformal prediction is the price of using the data twice.

    >>> cross_conformal_p_values([[5.0, 0.0], [9.0, 0.0]], [[1.0, 2.0], [3.0, 4.0]])
    array([0.2, 1. ])
    """
    by_fold = [as_vector(each, "held-out scores") for each in held_out_scores]
    queries = [as_vector(each, "scores") for each in scores]
    if not by_fold or len(queries) != len(by_fold) or len({len(query) for query in queries}) > 1:
        found = f"{len(queries)} sets of scores for {len(by_fold)} folds"
        raise InputError(f"{found}: pass the scores of the same inputs by each fold's detector, and the fold's own")
    pairs = zip(queries, by_fold, strict=True)
    at_least = np.sum([len(fold) - np.searchsorted(np.sort(fold), query) for query, fold in pairs], axis=0)
    p: FloatArray = (1 + at_least) / (1 + sum(map(len, by_fold)))
    return p


def weighted_p_values(
    scores: Tensor | Numbers,
    calibration_scores: Tensor | Numbers,
    weights: Tensor | Numbers,
    calibration_weights: Tensor | Numbers,
) -> FloatArray:
    """Compute weighted conformal p-values `[batch]` for inputs that are distributed otherwise than the calibration inputs.

    `weights` `[batch]` and `calibration_weights` `[n]` are the density ratio w(x) = q(x) / p(x), up to a factor, of the new
    inputs' distribution q to the calibration inputs' p. Then p = (w(x) + Σ_i w_i 1{s_i ≥ s(x)}) / (w(x) + Σ_i w_i).

    Guarantee: P(p ≤ α) ≤ α for inputs from q, if w is the true ratio (Tibshirani et al. 2019). An estimated ratio adds
    at most half of its mean absolute error under p, for w of mean 1.

    >>> weighted_p_values([2.0], [1.0, 3.0], weights=[1.0], calibration_weights=[2.0, 1.0])
    array([0.5])
    """
    query, calibration = as_vector(scores, "scores"), as_vector(calibration_scores, "calibration scores")
    own, others = as_vector(weights, "weights"), as_vector(calibration_weights, "calibration weights")
    if own.shape != query.shape or others.shape != calibration.shape:
        raise InputError(
            f"{len(own)} weights for {len(query)} scores, {len(others)} for {len(calibration)}: pass one per score"
        )
    if min(own.min(initial=0), others.min(initial=0)) < 0 or not 0 < others.sum() < np.inf:
        raise InputError("weights are negative, infinite or all zero: pass the density ratio of each input, 0 or more")
    order = np.argsort(calibration)
    mass_from = np.append(np.cumsum(others[order][::-1])[::-1], 0.0)
    p: FloatArray = (own + mass_from[np.searchsorted(calibration[order], query)]) / (own + others.sum())
    return p
