"""The adapter to PyOD's conventions, as PyOD documents them for its detectors."""

import numpy as np
import pytest
import torch
from scipy.stats import betabinom
from sklearn.datasets import make_blobs
from sklearn.exceptions import NotFittedError
from sklearn.utils.estimator_checks import parametrize_with_checks

from besnn import BESNNClassifier
from besnn.errors import InputError
from besnn.estimator import BESNNOutlierDetector


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


SMALL = BESNNClassifier(2, hidden=(16,), feature_dim=8, epochs=2, random_state=0)


@parametrize_with_checks([BESNNOutlierDetector(contamination=0.5, classifier=SMALL)])
def test_scikit_learn_estimator_checks(estimator, check):
    check(estimator)


@pytest.fixture(scope="module")
def blobs():
    return make_blobs(2500, n_features=5, centers=3, cluster_std=2.0, random_state=3)


@pytest.fixture(scope="module")
def detector(blobs):
    X, y = blobs
    return BESNNOutlierDetector(contamination=0.1, classifier=BESNNClassifier(epochs=5, random_state=0)).fit(X[:500], y[:500])


def test_fitted_attributes(detector, blobs):
    X = blobs[0][:500]
    assert detector.decision_scores_.shape == detector.labels_.shape == (500,)
    assert isinstance(detector.threshold_, float)
    np.testing.assert_array_equal(detector.labels_, detector.decision_scores_ > detector.threshold_)
    np.testing.assert_array_equal(detector.decision_function(X), detector.decision_scores_)
    np.testing.assert_array_equal(detector.predict(X), detector.labels_)


def test_decides_as_the_classifier_at_alpha_equal_to_contamination(detector, blobs):
    X = blobs[0]
    np.testing.assert_array_equal(detector.predict(X), detector.classifier_.is_ood(X, alpha=0.1))


def test_outliers_are_one_and_score_higher(detector, blobs):
    X = blobs[0][500:]
    outliers = np.random.default_rng(0).uniform(-40, 40, X.shape)
    assert set(np.unique(detector.predict(X))) == {0, 1}
    assert detector.predict(outliers).mean() > 0.9
    assert np.median(detector.decision_function(outliers)) > np.quantile(detector.decision_function(X), 0.99)


def test_contamination_is_the_share_of_ordinary_inputs_flagged(detector, blobs):
    flagged = int(detector.predict(blobs[0][500:]).sum())
    n, rank = 100, 91  # ⌈101 · 0.9⌉
    low, high = betabinom(2000, n + 1 - rank, rank).interval(0.999)
    assert low <= flagged <= high


def test_trains_a_classifier_of_its_own(blobs):
    X, y = (part[:100] for part in blobs)
    given = BESNNClassifier(members=2, epochs=1, random_state=0)
    detector = BESNNOutlierDetector(classifier=given).fit(X, y)
    assert detector.classifier_ is not given
    assert detector.classifier_.members == 2
    with pytest.raises(NotFittedError):
        given.predict(X)


@pytest.mark.parametrize("contamination", [0, -0.1, 0.6])
def test_refuses_contamination_out_of_range(blobs, contamination):
    with pytest.raises(InputError, match=f"contamination={contamination} is out of range"):
        BESNNOutlierDetector(contamination).fit(*blobs)


def test_says_when_rows_are_too_few(blobs):
    X, y = (part[:30] for part in blobs)
    with pytest.raises(InputError, match=r"6 calibration scores are too few for alpha=0\.1: provide at least 9"):
        BESNNOutlierDetector(0.1, BESNNClassifier(epochs=1)).fit(X, y)
