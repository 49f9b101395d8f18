"""Cross-conformal and weighted p-values: brute force, and their guarantees by simulation."""

import numpy as np
import pytest

from besnn.detection import cross_conformal_p_values, p_values, weighted_p_values
from besnn.errors import InputError

RESAMPLES = 1000


def test_cross_conformal_p_values_equal_brute_force():
    rng = np.random.default_rng(0)
    folds = [rng.normal(size=size).round(1) for size in (7, 5, 6)]
    scores = rng.normal(size=(3, 40)).round(1)
    expected = [(1 + sum((fold >= s).sum() for fold, s in zip(folds, column, strict=True))) / 19 for column in scores.T]
    np.testing.assert_allclose(cross_conformal_p_values(scores, folds), expected)


def test_one_fold_is_split_conformal_prediction():
    rng = np.random.default_rng(0)
    calibration, scores = rng.normal(size=30), rng.normal(size=50)
    np.testing.assert_allclose(cross_conformal_p_values([scores], [calibration]), p_values(scores, calibration))


def centre_distances(rng, training, points):
    return np.abs(points - training.mean())  # a score that is fitted to the training data


def test_cross_conformal_false_alarms_stay_below_twice_alpha():
    alpha, folds, n, flagged = 0.1, 4, 20, []
    for seed in range(RESAMPLES):
        rng = np.random.default_rng(seed)
        data, new = rng.normal(size=n), rng.normal(size=20)
        parts = np.array_split(rng.permutation(n), folds)
        fitted = [np.delete(data, part) for part in parts]
        own = [centre_distances(rng, rest, data[part]) for rest, part in zip(fitted, parts, strict=True)]
        p = cross_conformal_p_values([centre_distances(rng, rest, new) for rest in fitted], own)
        flagged.append((p <= alpha).mean())
    assert np.mean(flagged) <= 2 * alpha + 2 * (1 - alpha) * (1 - 1 / folds) / (n / folds + 1)
    assert np.mean(flagged) == pytest.approx(alpha, abs=0.02)  # in practice


def test_weighted_p_values_equal_brute_force():
    rng = np.random.default_rng(0)
    calibration, scores = rng.normal(size=30).round(1), rng.normal(size=40).round(1)
    weights, own = rng.random(30), rng.random(40)
    expected = [(w + weights[calibration >= s].sum()) / (w + weights.sum()) for s, w in zip(scores, own, strict=True)]
    np.testing.assert_allclose(weighted_p_values(scores, calibration, own, weights), expected)
    np.testing.assert_allclose(weighted_p_values(scores, calibration, np.ones(40), np.ones(30)), p_values(scores, calibration))


def test_weights_restore_the_false_alarm_rate_under_a_shift():
    alpha, plain, weighted = 0.1, [], []
    for seed in range(RESAMPLES):
        rng = np.random.default_rng(seed)
        calibration, new = rng.normal(size=200), rng.normal(loc=1.0, size=50)  # the density ratio is exp(x − 1/2)
        plain.append((p_values(new, calibration) <= alpha).mean())
        p = weighted_p_values(new, calibration, np.exp(new - 0.5), np.exp(calibration - 0.5))
        weighted.append((p <= alpha).mean())
    assert np.mean(plain) > 0.3
    assert np.mean(weighted) <= alpha + 3.5 * np.std(weighted) / RESAMPLES**0.5


def test_wrong_use_is_explained():
    with pytest.raises(InputError, match="1 sets of scores for 2 folds"):
        cross_conformal_p_values([[1.0]], [[1.0], [2.0]])
    with pytest.raises(InputError, match="1 weights for 2 scores"):
        weighted_p_values([1.0, 2.0], [1.0], [1.0], [1.0])
    with pytest.raises(InputError, match="negative, infinite or all zero"):
        weighted_p_values([1.0], [1.0], [1.0], [0.0])
    with pytest.raises(InputError, match="negative, infinite or all zero"):
        weighted_p_values([1.0], [1.0], [1.0], [np.inf])
    with pytest.raises(InputError, match="scores hold 1 NaN"):
        weighted_p_values([np.nan], [1.0], [1.0], [1.0])


def test_p_values_are_those_of_nonconform():
    scoring = pytest.importorskip("nonconform.scoring", reason="nonconform is not installed (it needs Python 3.12)")
    rng = np.random.default_rng(0)
    calibration, scores = rng.normal(size=60).round(1), rng.normal(size=40).round(1)
    weights, own = rng.random(60), rng.random(40)
    other = scoring.Empirical(tie_break="classical")
    np.testing.assert_allclose(p_values(scores, calibration), other.compute_p_values(scores, calibration))
    expected = other.compute_p_values(scores, calibration, (weights, own))
    np.testing.assert_allclose(weighted_p_values(scores, calibration, own, weights), expected)
