"""From a recipe and data to a calibrated detector."""

import hashlib
import json
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from lightning.fabric import Fabric

from besnn.data import Dataset, keep_classes, require_classes
from besnn.detector import Detector
from besnn.errors import InputError
from besnn.model import Preprocessing
from besnn.score_fitting import fit_scoring
from besnn.training.build import build_method, resolve_backbone
from besnn.training.config import DataConfig, Recipe
from besnn.training.provenance import provenance
from besnn.training.reporting import Reporter, Row, Silent
from besnn.training.source import ArraySource
from besnn.training.trainer import Trainer, make_fabric


@dataclass(frozen=True)
class Parts:
    """The training data, divided: the network learns from `training` alone.

    Attributes:
        training: what weights and densities are fitted to.
        validation: held out to stop early and to choose the score; None for no such part.
        calibration: held out for the threshold, drawn without regard to class; None for no such part.
    """

    training: Dataset
    validation: Dataset | None
    calibration: Dataset | None


@dataclass(frozen=True)
class Fitted:
    """A detector and how it came about."""

    detector: Detector
    history: list[Row]
    parts: Parts


def divide(dataset: Dataset, config: DataConfig, seed: int) -> Parts:
    """Chooses classes and rows as the recipe says, and holds data out."""
    require_classes(dataset)
    if config.classes is not None:
        dataset = keep_classes(dataset, config.classes)
    if config.limit is not None and config.limit < len(dataset):
        dataset, _ = dataset.split(config.limit, seed=seed)
    calibration = validation = None
    if config.calibration:
        calibration, dataset = dataset.split(config.calibration, seed=seed, stratify=False)
    if config.validation:
        validation, dataset = dataset.split(config.validation / (1 - config.calibration), seed=seed)
    return Parts(dataset, validation, calibration)


def fit_detector(
    recipe: Recipe,
    dataset: Dataset,
    *,
    fabric: Fabric | None = None,
    run_folder: Path | None = None,
    resume: bool = False,
    reporter: Reporter | None = None,
) -> Fitted:
    """Trains, chooses the score, calibrates.

    Args:
        recipe: what to do.
        dataset: labelled data; all held-out parts are taken from it.
        fabric: devices and precision; one device with the recipe's precision unless given.
        run_folder: where checkpoints and logs go.
        resume: continue from the run folder's checkpoint, if there is one.
        reporter: told how training goes.

    >>> from besnn.data import two_moons
    >>> from besnn.training.recipe import load_recipe
    >>> recipe = load_recipe("two-moons", ["training.epochs=1"])
    >>> fitted = fit_detector(recipe, two_moons(500))
    >>> bool(fitted.detector.predict([[0.0, 1.0], [90.0, 90.0]]).is_ood[1])
    True
    """
    began = time.monotonic()
    parts = divide(dataset, recipe.data, recipe.training.seed)
    fabric = fabric or make_fabric(recipe.training.precision)
    training = ArraySource(parts.training, fabric.device)
    input_shape = tuple(training.inputs.shape[1:])
    recipe = recipe.model_copy(update={"backbone": resolve_backbone(recipe.backbone, input_shape)})
    torch.manual_seed(recipe.training.seed)
    model, objective = build_method(recipe, input_shape, len(parts.training.class_names))
    preprocessing = Preprocessing.fit(training.inputs)
    identity = _identity(recipe, parts.training)
    trainer = Trainer(recipe, model, objective, preprocessing, fabric, run_folder, identity, reporter or Silent())
    validation = None if parts.validation is None else ArraySource(parts.validation, fabric.device)
    history = trainer.fit(training, validation, resume)
    detector = Detector(
        model,
        preprocessing,
        parts.training.class_names,
        recipe,
        provenance=provenance(dataset.hashes) | {"data_note": dataset.note},
        feature_names=dataset.feature_names,
    )
    fit_scoring(detector, recipe.score, parts.training, parts.validation)
    if parts.calibration is not None:
        _calibrate(detector, recipe, parts.calibration)
    detector.provenance["seconds"] = round(time.monotonic() - began, 3)
    return Fitted(detector, history, parts)


def _calibrate(detector: Detector, recipe: Recipe, calibration: Dataset) -> None:
    try:
        detector.calibrate(calibration.inputs, recipe.calibration.alpha, recipe.calibration.delta)
    except InputError as error:
        raise InputError(
            f"{error} (the recipe holds out data.calibration={recipe.data.calibration} of the data for it)"
        ) from None


def _identity(recipe: Recipe, dataset: Dataset) -> str:
    """A digest of all that decides a run's outcome."""
    sha = hashlib.sha256(json.dumps(recipe.model_dump(mode="json"), sort_keys=True).encode())
    for array in (dataset.inputs, dataset.labels):
        assert array is not None
        sha.update(f"{array.shape}|{array.dtype}|".encode())
        sha.update(np.ascontiguousarray(array).data)
    return sha.hexdigest()
