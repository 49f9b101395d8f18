"""Estimators by scikit-learn's and PyOD's conventions: a detector trained and calibrated from arrays."""

import contextlib
import warnings
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple, Self

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.utils import check_consistent_length, check_random_state, column_or_1d
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from besnn.checks import is_fraction
from besnn.data import Dataset, Inputs
from besnn.data.dataset import split_indices, varies_within_classes
from besnn.data.encoding import TableEncoding, frame_cells, frame_rows, named_columns, surveyed
from besnn.data.rows import Rounding, Rows, rows_from_array
from besnn.detection import ConformalThreshold, p_values
from besnn.detection.conformal import least_scores
from besnn.detection.score_set import COMBINED
from besnn.detector import Detector
from besnn.errors import InputError, NotReadyError
from besnn.recipe.config import AUTO, METHOD
from besnn.training import Recipe, load_recipe, parse_recipe

IMAGES: dict[str, Any] = {  # the settings for images; those for tables are the recipe `table`
    "backbone": {"hidden": (64, 64), "feature_dim": 32},
    "method": {"noise_dim": 32, "hidden_dim": 32},
    "training": {
        "epochs": 20,
        "least_steps": 100,
        "batch_size": 64,
        "gradient_every": 4,
        "optimiser": {"name": "adamw", "learning_rate": 0.002, "weight_decay": 5e-4},
    },
    "score": {"name": "nearest-neighbour", "densities": ("nearest-neighbour", "class-gaussian"), "neighbour": 10},
}
ALPHA = 0.05  # the false-alarm rate that the detector decides at
LEAST_REFERENCE = 2  # validation rows to combine scores with
ROUNDING = 1e-5  # of scores, relative to the largest


class _Estimator(BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True  # gaps are allowed
        return tags


class BESNNClassifier(ClassifierMixin, _Estimator):  # type: ignore[misc]  # the same
    """A classifier that says when it does not know: a BE-SNN, calibrated on rows that it holds out itself.

    Inputs are a table `[n, d]`, or images `[n, c, h, w]`, `[n, h, w, c]` or `[n, h, w]` with integers from 0 to
    255 or floats in [0, 1]. A table is an array of numbers, or a frame of pandas, polars or Arrow, whose columns may also hold
    words, booleans and dates. NaN and null are gaps, which are learned as such; a word, or a gap in a column, that no training
    row has is evidence that a row is unknown. Columns and channels are standardised internally. Labels can have any type.

    Args:
        members: N, the number of networks that share the weights.
        hidden: widths of the hidden layers (tables) or of the convolution blocks (images); None for the default.
        feature_dim: d, the length of a feature vector; None for 64 on tables and 32 on images.
        epochs: passes over the training rows; None for 20, or more if that makes few optimiser steps.
        batch_size, learning_rate, weight_decay: of the optimiser, AdamW; the rate is its peak. None for the default.
        score_name: which score `ood_score` returns. `class-covariance`, `class-residual`, `whitened-neighbour`,
            `class-gaussian` and `nearest-neighbour` are densities, of the inputs (tables) or of features (images). `method` is
            the paper's tempered entropy, `combined` adds it to densities, and `auto` is `combined`, or `method` if fewer than
            two validation rows are held out. None for `combined` on tables and `nearest-neighbour` on images.
        validation: share of the rows held out for `auto` and `combined`; other scores need none.
        calibration: share of the rows held out for p-values and thresholds; if that is fewer than two rows, none are.
        accelerator: `cpu`, `gpu`, `mps`, or `auto` for the best one available.

    Attributes:
        classes_: the class labels, sorted, `[classes]`.
        detector_: the trained `Detector`. `detector_.save(path)` writes the file that `besnn score` and `besnn serve` read. It
            decides at alpha = 0.05 if there are enough calibration rows (19); otherwise it is not calibrated.
        calibration_scores_: `ood_score` of the calibration rows.
        history_: loss terms, one dictionary per epoch.

    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> classifier = BESNNClassifier(random_state=0).fit(X, y)
    >>> classifier.is_ood([X[0], [50.0, 50.0, 50.0, 50.0]])
    array([False,  True])
    """

    def __init__(
        self,
        members: int = 4,
        *,
        hidden: tuple[int, ...] | None = None,
        feature_dim: int | None = None,
        epochs: int | None = None,
        batch_size: int | None = None,
        learning_rate: float | None = None,
        weight_decay: float | None = None,
        score_name: str | None = None,
        validation: float = 0.1,
        calibration: float = 0.2,
        accelerator: str = "cpu",
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.members = members
        self.hidden = hidden
        self.feature_dim = feature_dim
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.score_name = score_name
        self.validation = validation
        self.calibration = calibration
        self.accelerator = accelerator
        self.random_state = random_state

    def fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Train on most rows `[n, ...]` with labels `[n]`, and calibrate on the rest.

        Training draws rows in proportion to `sample_weight` `[n]`. Densities and calibration count each row once, but leave out
        rows of weight 0, as if they were not there.
        """
        from besnn.training import make_fabric
        from besnn.training.fit import fit_detector  # slow to import, and not needed by a fitted estimator

        training_rows = self._training_rows(X, y, sample_weight)
        inputs, weights = training_rows.inputs, training_rows.weights
        self.classes_, labels = np.unique(training_rows.targets, return_inverse=True)
        encoding = training_rows.encoding
        names = tuple(getattr(self, "feature_names_in_", ())) if encoding is None else encoding.feature_names
        seed = int(check_random_state(self.random_state).randint(2**31))
        recipe = self._recipe(seed, is_image=inputs.ndim > 2)
        held_out, rest = _hold_out(len(inputs), recipe.data.calibration, seed)
        if len(lost := np.setdiff1d(labels, labels[rest])):
            name = str(self.classes_[lost[0]])
            warnings.warn(f"no row of class {name!r} is left to train on: pass more rows, or lower calibration", stacklevel=2)
        class_names = tuple(str(label) for label in self.classes_)
        labelled = Dataset(inputs, labels.astype(np.int64), class_names, "X", feature_names=names, weights=weights)
        training = replace(labelled, encoding=encoding).subset(rest)
        with _torch_precision_kept():
            fabric = make_fabric(accelerator=self.accelerator)
            fitted = fit_detector(self._adapted(recipe, training, len(inputs)), training, fabric=fabric)
        self.detector_, self.history_ = fitted.detector, fitted.history
        self.detector_.integer_labels = self.classes_.dtype.kind in "iu"
        self.calibration_scores_ = self.detector_.score(inputs[held_out])
        with contextlib.suppress(InputError):  # too few rows for this rate
            self.detector_.threshold = ConformalThreshold(self.calibration_scores_, ALPHA)
        return self

    def predict_proba(self, X: ArrayLike) -> NDArray[np.float32]:
        """Return the probabilities of the classes, `[n, classes]`."""
        inputs = self._inputs(X)
        parts = [self.detector_.model.log_probabilities(evidence).exp() for evidence, _ in self.detector_.outputs(inputs)]
        return torch.cat(parts).float().cpu().numpy()

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """Return the most probable class labels, `[n]`, however unusual the inputs; see `is_ood`."""
        best = self.predict_proba(X).argmax(axis=1)  # first: it checks that there has been a fit
        labels: NDArray[Any] = self.classes_[best]
        return labels

    def ood_score(self, X: ArrayLike) -> NDArray[np.float32]:
        """Return the OOD score of each input, `[n]`: higher = more out-of-distribution."""
        inputs = self._inputs(X)
        return self.detector_.score(inputs)

    def p_value(self, X: ArrayLike) -> NDArray[np.float64]:
        """Return the p-value of each input, `[n]`: the share of calibration rows, and the input itself, at least as unusual.

        Scores that are equal up to rounding count as equal: the last digit of a score depends on what else is in its batch.
        """
        scores, calibration_scores = self.ood_score(X), self._calibration_scores()
        rounding = ROUNDING * float(np.abs(calibration_scores).max())
        values: NDArray[np.float64] = p_values(scores - rounding, calibration_scores)
        return values

    def score_samples(self, X: ArrayLike) -> NDArray[np.float64]:
        """Return `p_value`, under the name that scikit-learn's pipelines and searches pass on: lower = more unusual.

        Inputs with `pipeline.score_samples(X) <= alpha` are those that `is_ood` flags.
        """
        return self.p_value(X)

    def is_ood(self, X: ArrayLike, alpha: float = 0.05) -> NDArray[np.bool_]:
        """Decide whether inputs are out-of-distribution, `[n]`; new inputs like those in `fit` are flagged with P ≤ alpha."""
        return self.conformal(alpha).is_ood(self.ood_score(X))

    def conformal(self, alpha: float = 0.05) -> ConformalThreshold:
        """Return the threshold on `ood_score` at a false-alarm rate; raise if there are too few calibration rows for it."""
        scores = self._calibration_scores()
        try:
            return ConformalThreshold(scores, alpha)
        except InputError as error:
            raise InputError(f"{error} (calibration={self.calibration} is the share of rows that fit holds out)") from None

    def _calibration_scores(self) -> NDArray[np.float32]:
        check_is_fitted(self)
        if not len(self.calibration_scores_):
            raise NotReadyError(f"calibration={self.calibration} held out no rows to calibrate on: raise it, or pass more rows")
        return self.calibration_scores_

    def _training_rows(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None) -> "_TrainingRows":
        """Check what `fit` is given; encode a table that has words, dates, gaps or columns too fine for float32."""
        cells = frame_cells(X) if hasattr(X, "__arrow_c_stream__") else None
        if cells is not None and surveyed(cells, named_columns(cells)) is not None:
            validate_data(self, X, skip_check_array=True)  # the names of columns, and how many there are
            rows, targets = None, column_or_1d(y, warn=True)
            check_consistent_length(X, targets)
        else:
            rows, targets = validate_data(self, X, y, allow_nd=True, ensure_min_samples=2, ensure_all_finite="allow-nan")
            cells = self._cells(rows) if rows.ndim == 2 and _needs_encoding(rows) else None
        check_classification_targets(targets)
        weights = None
        if sample_weight is not None:
            sized = targets if rows is None else rows
            weights = _check_sample_weight(sample_weight, sized, dtype=np.float64, ensure_non_negative=True)
            kept = weights > 0
            rows, targets, weights = None if rows is None else rows[kept], targets[kept], weights[kept]
            cells = None if cells is None else cells.filter(pa.array(kept))
        if cells is None:
            assert rows is not None
            return _TrainingRows(rows.astype(np.float32) if rows.ndim == 2 else _images(rows), targets, weights)
        encoding = surveyed(cells, named_columns(cells))
        assert encoding is not None
        return _TrainingRows(_checked(encoding.rows(cells)), targets, weights, encoding)

    def _inputs(self, X: ArrayLike) -> NDArray[np.generic]:
        check_is_fitted(self)
        encoding = self.detector_.encoding
        if encoding is not None and hasattr(X, "__arrow_c_stream__"):
            validate_data(self, X, reset=False, skip_check_array=True)
            return _checked(frame_rows(X, encoding))
        rows: NDArray[np.generic] = validate_data(self, X, reset=False, allow_nd=True, ensure_all_finite="allow-nan")
        if encoding is None and np.isnan(rows).any():
            found = "X has gaps (NaN), and the rows that were learned from have none"
            raise InputError(f"{found}: fill them, or fit rows that have gaps")
        if encoding is not None:
            return _checked(encoding.rows(self._cells(rows)))
        return rows.astype(np.float64) if rows.ndim == 2 else _images(rows)

    def _cells(self, rows: NDArray[Any]) -> pa.RecordBatch:
        """Return an array as cells, with the names of columns if they have any."""
        names = getattr(self, "feature_names_in_", range(rows.shape[1]))
        return pa.RecordBatch.from_pydict({str(name): pa.array(column) for name, column in zip(names, rows.T, strict=True)})

    def _recipe(self, seed: int, is_image: bool) -> Recipe:
        """Return the recipe that the parameters describe; a wrong parameter raises an error that names its field."""
        content = IMAGES if is_image else load_recipe("table").model_dump(exclude_unset=True)
        optimiser = {"learning_rate": self.learning_rate, "weight_decay": self.weight_decay}
        training = {"epochs": self.epochs, "batch_size": self.batch_size}
        training |= {"seed": seed, "least_steps": None if self.epochs is None else 0}
        parameters: dict[str, dict[str, Any]] = {
            "data": {"source": "X", "validation": self.validation, "calibration": self.calibration},
            "backbone": {"hidden": self.hidden, "feature_dim": self.feature_dim},
            "method": {"members": self.members},
            "training": training | {"optimiser": content["training"]["optimiser"] | _given(optimiser)},
            "score": {"name": self.score_name},
        }
        sections = {name: content.get(name, {}) | _given(own) for name, own in parameters.items()}
        return parse_recipe({"name": type(self).__name__, **sections})

    def _adapted(self, recipe: Recipe, training: Dataset, rows: int) -> Recipe:
        """Return the recipe for training rows that are left after calibration rows were held out of all `rows`."""
        validation, score = round(recipe.data.validation * rows), recipe.score.name
        if self.score_name is None and not varies_within_classes(training):
            score = METHOD
        elif self.score_name is None and score == COMBINED and validation < LEAST_REFERENCE:
            score = recipe.score.densities[0]
        share = validation / len(training) if score in (AUTO, COMBINED) else 0.0
        changes = {"score.name": score, "data.calibration": 0.0, "data.validation": share}
        return parse_recipe(recipe.model_dump(), [f"{field}={value}" for field, value in changes.items()])

    def __getstate__(self) -> dict[str, Any]:
        """Pickle the detector as the content of its model file."""
        state = dict(super().__getstate__())
        if "detector_" in state:
            state["detector_"] = state["detector_"].to_bytes()
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore the detector on the CPU."""
        if "detector_" in state:
            state = {**state, "detector_": Detector.from_bytes(state["detector_"])}
        super().__setstate__(state)


class BESNNOutlierDetector(_Estimator):
    """A `BESNNClassifier` with PyOD's names: what it does not know is an outlier. PyOD itself is not needed.

    It learns from the labels of known classes; none of them means "outlier".

    Args:
        contamination: the share of ordinary inputs that it may flag, the alpha of `is_ood`; above 0, at most 0.5.
        classifier: the classifier to train, unfitted; `BESNNClassifier()` unless given.

    Attributes:
        classifier_: the trained classifier.
        decision_scores_: scores of all rows given to `fit`, `[n]`. Most were trained on and look more ordinary than new rows.
        threshold_: outliers score above it. It comes from the rows that the classifier held out for calibration.
        labels_: 1 where `decision_scores_` exceed the threshold, else 0, `[n]`.

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
        """Train on rows `[n, ...]` of known classes `[n]`."""
        if not is_fraction(self.contamination) or self.contamination > 0.5:
            raise InputError(f"contamination={self.contamination!r} is out of range: choose it above 0 and at most 0.5")
        self.classifier_ = clone(BESNNClassifier() if self.classifier is None else self.classifier).fit(X, y)
        self.n_features_in_ = self.classifier_.n_features_in_
        self._conformal = self.classifier_.conformal(self.contamination)
        self.threshold_ = self._conformal.threshold
        self.decision_scores_ = self.decision_function(X)
        self.labels_ = self._outliers(self.decision_scores_)
        return self

    def decision_function(self, X: ArrayLike) -> NDArray[np.float32]:
        """Return the OOD score of each input, `[n]`: higher = more of an outlier."""
        check_is_fitted(self)
        scores: NDArray[np.float32] = self.classifier_.ood_score(X)
        return scores

    def predict(self, X: ArrayLike) -> NDArray[np.int64]:
        """Return 1 for outliers and 0 for other inputs, `[n]`."""
        return self._outliers(self.decision_function(X))

    def _outliers(self, scores: NDArray[np.float32]) -> NDArray[np.int64]:
        flags: NDArray[np.int64] = self._conformal.is_ood(scores).astype(np.int64)
        return flags


def _given(parameters: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in parameters.items() if value is not None}


def _hold_out(rows: int, share: float, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the rows to calibrate on, drawn without regard to class as the guarantee requires, and all others.

    Few rows are shared out as on the command line: a false-alarm rate of 0.05 needs 19 of them, up to half of all.
    """
    count, least = round(share * rows), least_scores(ALPHA)
    if 0 < count < least <= rows // 2:
        count = least
    if count < 2:
        return np.arange(0), np.arange(rows)
    held_out, rest = split_indices(rows, [count], seed=seed)
    return held_out, rest


class _TrainingRows(NamedTuple):
    """What `fit` learns from."""

    inputs: Inputs
    targets: NDArray[Any]
    weights: NDArray[np.float64] | None
    encoding: TableEncoding | None = None


def _needs_encoding(rows: NDArray[Any]) -> bool:
    """Whether a table has gaps, or columns that are too large, or vary too little, for float32."""
    rounding = Rounding()
    rounding.add(np.where(np.isnan(rows), 0, rows))
    return bool(np.isnan(rows).any() or rounding.loss())


def _checked(rows: Rows) -> Inputs:
    for row, error in enumerate(rows.errors):
        if error:
            raise InputError(f"row {row}: {error}: remove the row or correct it")
    return rows.inputs


def _images(rows: NDArray[Any]) -> Inputs:
    images = rows_from_array(rows)
    for row, error in enumerate(images.errors):
        if error:
            raise InputError(f"image {row} has {error}: pass integers from 0 to 255, or floats in [0, 1]")
    return images.inputs


@contextlib.contextmanager
def _torch_precision_kept() -> Iterator[None]:
    """Restore torch's global float32 precision, which choosing a device sets."""
    matmul, cudnn = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(matmul)
        torch.backends.cudnn.allow_tf32 = cudnn
