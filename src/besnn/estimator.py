"""The scikit-learn estimator: a detector trained and calibrated from arrays, by scikit-learn's rules."""

import contextlib
import math
import tempfile
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from besnn.data import Dataset, Inputs
from besnn.data.dataset import split_indices
from besnn.data.rows import Rounding, rows_from_array
from besnn.detection import ConformalThreshold
from besnn.detector import Detector
from besnn.errors import InputError, NotReadyError
from besnn.training import Recipe, parse_recipe

LEAST_EPOCHS, LEAST_STEPS = 20, 100  # of training, unless told otherwise
LEAST_CALIBRATION = 2  # rows; fewer rank nothing


class BESNNClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """A classifier that says when it does not know: a BE-SNN, calibrated on rows that it holds out by itself.

    Inputs are a table `[n, d]` of numbers, or images `[n, c, h, w]`, `[n, h, w, c]` or `[n, h, w]` with whole numbers from 0 to
    255 or floats in [0, 1]. Columns and channels are standardised inside. Labels are of any type.

    Args:
        members: N, how many networks share the weights.
        hidden: widths of the hidden layers (tables) or of the convolution blocks (images).
        feature_dim: d, the length of a feature vector, and of the class-feature generator's noise and hidden layer.
        epochs: passes through the training rows; None for 20, or as many more as make 100 optimiser steps.
        batch_size: rows in an optimiser step.
        learning_rate: AdamW's, at its peak; a cosine brings it to 0.
        weight_decay: of the shared weights.
        score_name: what `ood_score` is. `class-gaussian` and `nearest-neighbour` are feature densities, `method` is the paper's
            tempered entropy, `combined` adds both kinds, `auto` takes the best of all on outliers made up from validation rows.
            None for `class-gaussian` on tables and `nearest-neighbour` on images.
        validation: share of the rows kept from training for `auto` and `combined`; other scores need none.
        calibration: share of the rows kept from training for p-values and thresholds, drawn without regard to class. Where that
            makes fewer than two rows, none are.
        accelerator: `cpu`, `gpu`, `mps`, or `auto` for the best there is.
        random_state: as everywhere in scikit-learn.

    Attributes:
        classes_: the class labels, sorted, `[classes]`.
        n_features_in_: columns of the table; for images, the length of an image's first axis.
        feature_names_in_: the columns' names, where a data frame had them.
        detector_: the trained `Detector`. `detector_.save(path)` writes the file that `besnn score` and `besnn serve` take. It
            decides at alpha = 0.05 where there are calibration rows enough (19); else it is not calibrated.
        calibration_scores_: `ood_score` of the calibration rows.
        history_: loss terms, one dictionary an epoch.

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
        hidden: tuple[int, ...] = (64, 64),
        feature_dim: int = 32,
        epochs: int | None = None,
        batch_size: int = 64,
        learning_rate: float = 0.002,
        weight_decay: float = 5e-4,
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

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Trains on most rows `[n, ...]` with labels `[n]`, and calibrates on the rest."""
        from besnn.training import make_fabric
        from besnn.training.fit import fit_detector  # slow to import, and a fitted estimator can do without

        rows, targets = validate_data(self, X, y, allow_nd=True, ensure_min_samples=2)
        check_classification_targets(targets)
        self.classes_, labels = np.unique(targets, return_inverse=True)
        names = tuple(getattr(self, "feature_names_in_", ()))
        inputs = _training_table(rows, names) if rows.ndim == 2 else _images(rows)
        seed = int(check_random_state(self.random_state).randint(2**31))
        held_out, rest = _hold_out(len(inputs), self._recipe(seed).data.calibration, seed)
        if len(lost := np.setdiff1d(labels, labels[rest])):
            name = str(self.classes_[lost[0]])
            warnings.warn(f"no row of class {name!r} is left to train on: give more, or lower calibration", stacklevel=2)
        training = Dataset(
            inputs[rest],
            labels[rest].astype(np.int64),
            tuple(str(label) for label in self.classes_),
            name="X",
            feature_names=names,
        )
        with _torch_precision_kept():
            fabric = make_fabric(accelerator=self.accelerator)
            fitted = fit_detector(self._recipe(seed, self._adaptations(training)), training, fabric=fabric)
        self.detector_, self.history_ = fitted.detector, fitted.history
        self.calibration_scores_ = self.detector_.score(inputs[held_out])
        with contextlib.suppress(InputError):  # too few rows for this rate
            self.detector_.threshold = ConformalThreshold(self.calibration_scores_, alpha=0.05)
        return self

    def predict_proba(self, X: ArrayLike) -> NDArray[np.float32]:
        """The classes' probabilities, `[n, classes]`."""
        inputs = self._inputs(X)
        parts = [self.detector_.model.log_probabilities(evidence).exp() for evidence, _ in self.detector_.outputs(inputs)]
        return torch.cat(parts).float().cpu().numpy()

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """The most probable class labels, `[n]`, however strange the inputs; `is_ood` tells."""
        best = self.predict_proba(X).argmax(axis=1)
        labels: NDArray[Any] = self.classes_[best]
        return labels

    def ood_score(self, X: ArrayLike) -> NDArray[np.float32]:
        """How strange inputs are, `[n]`: higher = more out-of-distribution."""
        inputs = self._inputs(X)
        return self.detector_.score(inputs)

    def p_value(self, X: ArrayLike) -> NDArray[np.float64]:
        """How ordinary inputs are, `[n]`: the share of calibration rows, and the input itself, that are at least as strange."""
        scores = self.ood_score(X)
        return self.conformal(alpha=0.5).p_values(scores)  # p-values do not depend on alpha; a large one needs few rows

    def is_ood(self, X: ArrayLike, alpha: float = 0.05) -> NDArray[np.bool_]:
        """Whether inputs are out-of-distribution, `[n]`; for new inputs of the kind in `fit` it is true with P ≤ alpha."""
        scores = self.ood_score(X)
        return self.conformal(alpha).is_ood(scores)

    def conformal(self, alpha: float = 0.05) -> ConformalThreshold:
        """The threshold on `ood_score` at a false-alarm rate, from the calibration rows.

        Raises:
            NotReadyError: there are no calibration rows.
            InputError: there are too few for this rate.
        """
        check_is_fitted(self)
        if not len(self.calibration_scores_):
            raise NotReadyError(f"calibration={self.calibration} held out no rows to calibrate on: raise it, or give more rows")
        try:
            return ConformalThreshold(self.calibration_scores_, alpha)
        except InputError as error:
            raise InputError(f"{error} (calibration={self.calibration} is the share of rows that fit holds out)") from None

    def _inputs(self, X: ArrayLike) -> NDArray[np.generic]:
        """Checked inputs as the detector takes them."""
        check_is_fitted(self)
        rows: NDArray[np.generic] = validate_data(self, X, reset=False, allow_nd=True)
        return rows.astype(np.float64) if rows.ndim == 2 else _images(rows)

    def _recipe(self, seed: int, overrides: Iterable[str] = ()) -> Recipe:
        """The recipe that the parameters describe; a wrong one is an error that names its field."""
        content = {
            "name": type(self).__name__,
            "data": {"source": "X", "validation": self.validation, "calibration": self.calibration},
            "backbone": {"hidden": self.hidden, "feature_dim": self.feature_dim},
            "method": {"members": self.members, "noise_dim": self.feature_dim, "hidden_dim": self.feature_dim},
            "training": {
                "epochs": LEAST_EPOCHS if self.epochs is None else self.epochs,
                "batch_size": self.batch_size,
                "seed": seed,
                "gradient_every": 4,
                "optimiser": {"name": "adamw", "learning_rate": self.learning_rate, "weight_decay": self.weight_decay},
            },
            "score": {
                "name": "method" if self.score_name is None else self.score_name,
                "densities": ("class-gaussian", "nearest-neighbour"),
                "neighbour": 10,
            },
        }
        return parse_recipe(content, overrides)

    def _adaptations(self, training: Dataset) -> list[str]:
        """What the training rows change in the recipe."""
        changes = ["data.calibration=0"]  # fit has held them out already
        if self.score_name not in ("auto", "combined"):
            changes.append("data.validation=0")
        if self.score_name is None and _varies_within_classes(training):
            changes.append(f"score.name={'nearest-neighbour' if training.is_image else 'class-gaussian'}")
        if self.epochs is None:
            steps_per_epoch = max(1, len(training) // self.batch_size)
            changes.append(f"training.epochs={max(LEAST_EPOCHS, math.ceil(LEAST_STEPS / steps_per_epoch))}")
        return changes

    def __getstate__(self) -> dict[str, Any]:
        """The detector as the bytes of its file: a network's code does not pickle, its weights do."""
        state = dict(super().__getstate__())
        if "detector_" in state:
            state["detector_"] = _to_bytes(state["detector_"])
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        """The detector from its bytes, on the CPU."""
        if "detector_" in state:
            state = {**state, "detector_": _from_bytes(state["detector_"])}
        super().__setstate__(state)


def _hold_out(rows: int, share: float, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Row numbers to calibrate on, drawn without regard to class as the guarantee requires, and all others."""
    count = round(share * rows)
    if count < LEAST_CALIBRATION:
        return np.arange(0), np.arange(rows)
    held_out, rest = split_indices(rows, [count], seed=seed)
    return held_out, rest


def _varies_within_classes(dataset: Dataset) -> bool:
    """Whether any row differs from another of its class: where none does, feature densities have no width."""
    assert dataset.labels is not None
    _, first, place = np.unique(dataset.labels, return_index=True, return_inverse=True)
    return bool((dataset.inputs != dataset.inputs[first[place]]).any())


def _training_table(rows: NDArray[Any], names: tuple[str, ...]) -> NDArray[np.float32]:
    """A table in float32; refuses a column that is too large for it, or that varies more finely than it can tell."""
    rounding = Rounding()
    rounding.add(rows)
    if lost := rounding.loss(names):
        raise InputError(f"{lost}, as in make_pipeline(StandardScaler(), BESNNClassifier())")
    return rows.astype(np.float32)


def _images(rows: NDArray[Any]) -> Inputs:
    """Images as uint8."""
    images = rows_from_array(rows)
    for row, error in enumerate(images.errors):
        if error:
            raise InputError(f"image {row} has {error}: pass whole numbers from 0 to 255, or floats in [0, 1]")
    return images.inputs


@contextlib.contextmanager
def _torch_precision_kept() -> Iterator[None]:
    """Puts back torch's global float32 precision, which choosing a device sets."""
    matmul, cudnn = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(matmul)
        torch.backends.cudnn.allow_tf32 = cudnn


def _to_bytes(detector: Detector) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "detector.safetensors")
        detector.save(path)
        return path.read_bytes()


def _from_bytes(content: bytes) -> Detector:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "detector.safetensors")
        path.write_bytes(content)
        return Detector.load(path)
