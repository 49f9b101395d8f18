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

from besnn.data import Dataset, Inputs, require_classes
from besnn.data.arrays import inputs_from_rows
from besnn.detection import ConformalThreshold
from besnn.detector import Detector
from besnn.errors import InputError, NotReadyError
from besnn.fitting import fit_detector
from besnn.training import Recipe, make_fabric, parse_recipe

LEAST_EPOCHS, LEAST_STEPS = 20, 100  # of training, unless told otherwise
LEAST_CALIBRATION, LEAST_VALIDATION = 2, 10  # rows; a smaller part tells nothing, so its rows are trained on
LARGEST = float(np.finfo(np.float32).max) / 4  # float32 still holds differences of such numbers
FARTHEST = 1e6  # standard deviations from a column's mean: what is farther off is as strange, and would overflow


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
        learning_rate: its peak; a cosine brings it to 0.
        weight_decay: of the shared weights.
        score_name: what `ood_score` is: `method` for the paper's tempered entropy, `class-gaussian` or `nearest-neighbour` for
            a feature density, `combined` for both, or `auto` for the best of them on outliers made up from validation rows.
        validation: share of the rows to choose and combine scores on. Fewer than 10 such rows are trained on instead, and
            `auto` then means `method`.
        calibration: share of the rows held out for p-values and thresholds, drawn without regard to class. Fewer than 2 such
            rows are trained on instead.
        accelerator: `cpu`, `gpu`, `mps`, or `auto` for the best there is.
        random_state: as everywhere in scikit-learn.

    Attributes:
        classes_: the class labels, sorted, `[classes]`.
        n_features_in_: columns of the table; for images, the length of an image's first axis.
        feature_names_in_: the columns' names, where a data frame had them.
        detector_: the trained `Detector`. `detector_.save(path)` writes the file that `besnn score` and `besnn serve` take. Its
            false-alarm rate is 0.05 where there are calibration rows enough (19); else it is not calibrated.
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
        learning_rate: float = 0.003,
        weight_decay: float = 5e-4,
        score_name: str = "auto",
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
        rows, targets = validate_data(self, X, y, allow_nd=True, ensure_min_samples=2)
        check_classification_targets(targets)
        self.classes_, labels = np.unique(targets, return_inverse=True)
        seed = int(check_random_state(self.random_state).randint(2**31))
        dataset = Dataset(
            _training_table(rows) if rows.ndim == 2 else _images(rows),
            labels.astype(np.int64),
            tuple(str(label) for label in self.classes_),
            name="X",
            feature_names=tuple(getattr(self, "feature_names_in_", ())),
        )
        wanted = self._recipe(seed)
        calibration, training = _hold_out(dataset, wanted.data.calibration, seed)
        with _torch_as_it_was():
            fitted = fit_detector(
                self._recipe(seed, _overrides(wanted, len(training), self.epochs is None)),
                training,
                fabric=make_fabric(accelerator=self.accelerator),
            )
        self.detector_, self.history_ = fitted.detector, fitted.history
        self.calibration_scores_ = self.detector_.score(calibration)
        with contextlib.suppress(InputError):  # too few rows for a threshold at this rate
            self.detector_.threshold = ConformalThreshold(self.calibration_scores_)
        return self

    def predict_proba(self, X: ArrayLike) -> NDArray[np.float32]:
        """The classes' probabilities, `[n, classes]`."""
        inputs = self._inputs(X)
        parts = [self.detector_.model.log_probabilities(evidence).exp() for evidence, _ in self.detector_.outputs(inputs)]
        return torch.cat(parts).float().cpu().numpy()

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """The most probable class labels, `[n]`, however strange the inputs; `is_ood` tells."""
        labels: NDArray[Any] = self.classes_[self.predict_proba(X).argmax(axis=1)]
        return labels

    def ood_score(self, X: ArrayLike) -> NDArray[np.float32]:
        """How strange inputs are, `[n]`: higher = more out-of-distribution."""
        return self.detector_.score(self._inputs(X))

    def p_value(self, X: ArrayLike) -> NDArray[np.float64]:
        """How ordinary inputs are, `[n]`: the share of calibration rows at least as strange, counting the input itself."""
        scores = self.ood_score(X)
        return self.conformal(alpha=0.5).p_values(scores)  # p-values do not depend on alpha; this one asks for least rows

    def is_ood(self, X: ArrayLike, alpha: float = 0.05) -> NDArray[np.bool_]:
        """Whether inputs are out-of-distribution, `[n]`; of inputs like those of `fit`, at most a share alpha is so called."""
        scores = self.ood_score(X)
        return self.conformal(alpha).is_ood(scores)

    def conformal(self, alpha: float = 0.05) -> ConformalThreshold:
        """The threshold on `ood_score` at a false-alarm rate, from the calibration rows.

        Raises:
            NotReadyError: no rows were held out.
            InputError: too few for this rate.
        """
        check_is_fitted(self)
        if not len(self.calibration_scores_):
            raise NotReadyError(f"calibration={self.calibration} held out no rows to calibrate on: raise it, or fit more rows")
        try:
            return ConformalThreshold(self.calibration_scores_, alpha)
        except InputError as error:
            raise InputError(f"{error} (calibration={self.calibration} is the share of rows that fit holds out)") from None

    def _inputs(self, X: ArrayLike) -> Inputs:
        """Checked inputs as the detector takes them."""
        check_is_fitted(self)
        rows = validate_data(self, X, reset=False, allow_nd=True)
        if rows.ndim != 2 or len(self.detector_.input_shape) != 1:
            return _images(rows)
        mean, std = (t.double().cpu().numpy() for t in (self.detector_.preprocessing.mean, self.detector_.preprocessing.std))
        reach = FARTHEST * std
        return np.clip(rows, np.maximum(mean - reach, -LARGEST), np.minimum(mean + reach, LARGEST)).astype(np.float32)

    def _recipe(self, seed: int, overrides: Iterable[str] = ()) -> Recipe:
        """The recipe that the parameters describe; a wrong one is an error that names its field."""
        content = {
            "name": type(self).__name__,
            "data": {"source": "X", "validation": self.validation, "calibration": self.calibration},
            "backbone": {"hidden": self.hidden, "feature_dim": self.feature_dim},
            "method": {
                "name": "be-snn",
                "members": self.members,
                "noise_dim": self.feature_dim,
                "hidden_dim": self.feature_dim,
            },
            "training": {
                "epochs": LEAST_EPOCHS if self.epochs is None else self.epochs,
                "batch_size": self.batch_size,
                "seed": seed,
                "gradient_every": 4,
                "optimiser": {"name": "adamw", "learning_rate": self.learning_rate, "weight_decay": self.weight_decay},
            },
            "score": {"name": self.score_name, "densities": ("class-gaussian", "nearest-neighbour"), "neighbour": 10},
        }
        return parse_recipe(content, overrides)

    def __getstate__(self) -> dict[str, Any]:
        """The detector as the bytes of its file: what networks are made of does not pickle."""
        state = dict(super().__getstate__())
        if "detector_" in state:
            state["detector_"] = _to_bytes(state["detector_"])
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        """The detector from its bytes, on the CPU."""
        if "detector_" in state:
            state = {**state, "detector_": _from_bytes(state["detector_"])}
        super().__setstate__(state)


def _hold_out(dataset: Dataset, share: float, seed: int) -> tuple[Inputs, Dataset]:
    """Inputs to calibrate on, drawn without regard to class as the guarantee requires, and the rest to train on."""
    count = round(share * len(dataset))
    if count < LEAST_CALIBRATION:
        return dataset.inputs[:0], dataset
    calibration, training = dataset.split(count, seed=seed, stratify=False)
    if lost := set(range(len(dataset.class_names))).difference(np.unique(require_classes(training))):
        names = ", ".join(dataset.class_names[label] for label in sorted(lost))
        warnings.warn(f"no row of class {names} is left to train on: give more rows of it, or lower calibration", stacklevel=3)
    return calibration.inputs, training


def _overrides(wanted: Recipe, rows: int, default_epochs: bool) -> list[str]:
    """What so many training rows change in a recipe."""
    validation = round(wanted.data.validation * rows)
    held_out = validation if validation >= LEAST_VALIDATION else 0
    overrides = ["data.calibration=0"]  # done before
    if not held_out:
        overrides.append("data.validation=0")
    if default_epochs:
        steps_per_epoch = max(1, (rows - held_out) // wanted.batch_size)
        overrides.append(f"training.epochs={max(LEAST_EPOCHS, math.ceil(LEAST_STEPS / steps_per_epoch))}")
    return overrides


def _training_table(X: NDArray[np.generic]) -> NDArray[np.float32]:
    """A table in float32; refuses a column that is too large for it, or that varies more finely than it can tell."""
    with np.errstate(over="ignore", invalid="ignore"):
        largest, spread = np.abs(X).max(axis=0), X.std(axis=0, dtype=np.float64)
    lost = (largest > LARGEST) | ((spread > 1e-9 * largest) & (spread < 1e-6 * largest))
    if lost.any():
        column = int(np.argmax(lost))
        raise InputError(
            f"column {column} reaches {largest[column]:g} and varies by {spread[column]:g}, which float32 does not hold: "
            "standardise it first, as in make_pipeline(StandardScaler(), BESNNClassifier())"
        )
    return X.astype(np.float32)


def _images(X: NDArray[np.generic]) -> Inputs:
    """Images as uint8."""
    images, errors = inputs_from_rows(X)
    for row, error in enumerate(errors):
        if error:
            raise InputError(f"image {row} has {error}: pass whole numbers from 0 to 255, or floats in [0, 1]")
    return images


@contextlib.contextmanager
def _torch_as_it_was() -> Iterator[None]:
    """Puts torch's random state and float32 precision back afterwards."""
    matmul, cudnn = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    try:
        with torch.random.fork_rng(devices):
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
