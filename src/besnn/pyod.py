"""The same detector by PyOD's conventions, for tools that expect them; PyOD itself is not needed."""

from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, clone
from sklearn.utils.validation import check_is_fitted

from besnn.errors import InputError
from besnn.estimator import BESNNClassifier


class BESNNOutlierDetector(BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """A `BESNNClassifier` behind PyOD's names: what it does not know is an outlier.

    It learns from the labels of known classes; none of them means "outlier". `contamination` is the share of inputs like the
    training data that it may flag, `is_ood`'s alpha. So with the default a tenth of the ordinary inputs counts as outliers, as
    is usual in PyOD.

    Args:
        contamination: above 0, at most 0.5.
        classifier: what to train, unfitted; a `BESNNClassifier()` unless given.

    Attributes:
        classifier_: the trained classifier.
        decision_scores_: scores of all rows given to `fit`, `[n]`. Most were trained on and look more ordinary than new rows
            would, so they are no basis for a threshold.
        threshold_: what a score must exceed. It comes from the rows that the classifier held out for calibration, and from no
            others, so that of new ordinary inputs at most a share `contamination` exceeds it.
        labels_: 1 where `decision_scores_` exceed the threshold, else 0, `[n]`; for the reason above, fewer than a share
            `contamination` of them are 1.

    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> detector = BESNNOutlierDetector(classifier=BESNNClassifier(random_state=0)).fit(X, y)
    >>> detector.predict([X[0], [50.0, 50.0, 50.0, 50.0]])
    array([0, 1])
    """

    def __init__(self, contamination: float = 0.1, classifier: BESNNClassifier | None = None) -> None:
        self.contamination = contamination
        self.classifier = classifier

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Trains on rows `[n, ...]` of known classes `[n]`."""
        if not 0 < self.contamination <= 0.5:
            raise InputError(f"contamination={self.contamination} is out of range: choose it above 0 and at most 0.5")
        self.classifier_ = clone(BESNNClassifier() if self.classifier is None else self.classifier).fit(X, y)
        self.n_features_in_ = self.classifier_.n_features_in_
        self.threshold_ = self.classifier_.conformal(self.contamination).threshold
        self.decision_scores_ = self.decision_function(X)
        self.labels_ = self._outliers(self.decision_scores_)
        return self

    def decision_function(self, X: ArrayLike) -> NDArray[np.float32]:
        """How strange inputs are, `[n]`: higher = more of an outlier."""
        check_is_fitted(self)
        scores: NDArray[np.float32] = self.classifier_.ood_score(X)
        return scores

    def predict(self, X: ArrayLike) -> NDArray[np.int64]:
        """1 for outliers, 0 for others, `[n]`."""
        return self._outliers(self.decision_function(X))

    def _outliers(self, scores: NDArray[np.float32]) -> NDArray[np.int64]:
        flags: NDArray[np.int64] = (scores > self.threshold_).astype(np.int64)
        return flags
