"""From a recipe and data to a calibrated detector."""

import hashlib
import json
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from lightning.fabric import Fabric
from torch import nn

from besnn.data import Dataset
from besnn.detection.conformal import conformal_rank
from besnn.detector import Detector
from besnn.errors import InputError
from besnn.model import Preprocessing
from besnn.recipe.build import build_method, pretrained_backbone, resolve_backbone
from besnn.recipe.config import Recipe
from besnn.training.checkpoint import checkpoint_in
from besnn.training.choose_score import check_score, fit_scoring
from besnn.training.fabric import make_fabric
from besnn.training.pretrain import plain_folder, pretrained_network
from besnn.training.provenance import provenance
from besnn.training.reporting import Reporter, Row, Silent
from besnn.training.seeds import Draw, draw_seed, own_randomness
from besnn.training.source import Data, open_source
from besnn.training.split import Parts, divide
from besnn.training.trainer import Trainer


@dataclass(frozen=True)
class Fitted:
    """A detector and how it came about."""

    detector: Detector
    history: list[Row]
    parts: Parts


def fit_detector(
    recipe: Recipe,
    data: Data,
    *,
    feature_extractor: nn.Module | None = None,
    preprocessing: Preprocessing | None = None,
    fabric: Fabric | None = None,
    run_folder: Path | None = None,
    resume: bool = False,
    reporter: Reporter | None = None,
    checkpoint_every: int = 200,
    checkpoint_pause: float = 10.0,
    plain_networks: Path | None = None,
) -> Fitted:
    """Trains, chooses the score, calibrates.

    Of several processes that train together, only the first does more than train: it is the one whose detector is whole.

    Args:
        recipe: what to do.
        data: labelled, whole in memory or a folder that streams; all held-out parts are taken from it.
        feature_extractor: a network of your own in place of the recipe's backbone, trained or not, from a batch to
            `[batch, backbone.feature_dim]`; see docs/convert.md. Its file is loaded by `Detector.load(path, model)`.
        preprocessing: from raw inputs to what the network takes; standardises by the training data unless given.
        fabric: devices and precision; one device with the recipe's precision unless given.
        run_folder: where checkpoints and logs go, for this run alone.
        resume: continue from the run folder's checkpoint, if there is one.
        reporter: told how training goes.
        checkpoint_every: steps between checkpoints; the result does not depend on it.
        checkpoint_pause: seconds that a process alone leaves between two of them, but for the last.
        plain_networks: a folder that keeps the networks of `pretraining`, for runs that begin with the same one.

    >>> from besnn.data import two_moons
    >>> from besnn.recipe.reading import load_recipe
    >>> recipe = load_recipe("two-moons", ["training.epochs=1"])
    >>> fitted = fit_detector(recipe, two_moons(500))
    >>> bool(fitted.detector.predict([[0.0, 1.0], [90.0, 90.0]]).is_ood[1])
    True
    """
    if not isinstance(recipe, Recipe):
        raise InputError(f"recipe is a {type(recipe).__name__}: pass one from load_recipe or parse_recipe")
    if not isinstance(data, Data):
        raise InputError(
            f"data is a {type(data).__name__}: pass a Dataset(inputs, labels, class_names, name), or what besnn.data.load gives"
        )
    began = time.monotonic()
    parts = divide(data, recipe.data, recipe.training.seed)
    _check_calibration(recipe, parts.calibration)
    fabric = fabric or make_fabric(recipe.training.precision)
    training = open_source(parts.training, fabric.device)
    validation = None if parts.validation is None else open_source(parts.validation, fabric.device)
    given = preprocessing  # one that is fitted follows from the data
    preprocessing = preprocessing or Preprocessing.fit(training.sample())
    input_shape = preprocessing.input_shape
    recipe = recipe.model_copy(update={"backbone": resolve_backbone(recipe.backbone, input_shape)})
    network, classes = feature_extractor, len(parts.training.class_names)
    reporter = reporter or Silent()
    if untaught := _untaught_classes(parts.training):
        reporter.say(f"no row of {untaught} is left to train on: give more of them, or lower data.calibration")
    held_out = 0 if validation is None else len(validation)
    if recipe.pretraining is not None:
        if network is not None:
            raise InputError("pretraining trains the recipe's own backbone: leave it out for a network of your own")
        with own_randomness(fabric.device):  # a score that does not fit is refused before training, not between two
            check_score(recipe.score, build_method(recipe, input_shape, classes)[0], held_out)
        identity = _identity(recipe.plain(), parts, given)
        if run_folder is not None and not resume and fabric.is_global_zero:
            checkpoint_in(run_folder).unlink(missing_ok=True)  # another run's: see Trainer
        reporter.say("pretraining: the backbone as a plain softmax network")
        network = pretrained_network(
            recipe,
            classes,
            training,
            preprocessing,
            fabric,
            validation=validation,
            resume=resume,
            kept=None if plain_networks is None else plain_networks / f"{identity}.safetensors",
            run_folder=None if run_folder is None else plain_folder(run_folder),
            identity=identity,
            reporter=reporter,
            checkpoint_every=checkpoint_every,
            checkpoint_pause=checkpoint_pause,
        )
        reporter.say(f"training: {recipe.method.name}, from that network's trunk")
    with own_randomness(fabric.device):
        torch.manual_seed(draw_seed(recipe.training.seed, Draw.WEIGHTS))
        if network is None and recipe.backbone.weights is not None:
            network = pretrained_backbone(recipe.backbone, input_shape)
        model, objective = build_method(recipe, input_shape, classes, network)
    check_score(recipe.score, model, held_out)
    trainer = Trainer(
        recipe,
        model,
        objective,
        preprocessing,
        fabric,
        run_folder,
        _identity(recipe, parts, given, network),
        reporter,
        checkpoint_every,
        checkpoint_pause,
    )
    history = trainer.fit(training, validation, resume)
    detector = Detector(
        model,
        preprocessing,
        parts.training.class_names,
        recipe if feature_extractor is None else None,  # no recipe builds a network of the user's own
        provenance=provenance(data.hashes, fabric.device) | {"data_note": data.note if isinstance(data, Dataset) else ""},
        feature_names=data.feature_names if isinstance(data, Dataset) else (),
    )
    if fabric.is_global_zero:
        fit_scoring(detector, recipe.score, parts.training, parts.validation)
        if parts.calibration is not None:
            detector.calibrate(parts.calibration.inputs, recipe.calibration.alpha, recipe.calibration.delta)
    detector.provenance["seconds"] = round(time.monotonic() - began, 3)
    return Fitted(detector, history, parts)


def _untaught_classes(training: Data) -> str:
    """The classes that have no rows, in words."""
    present = set() if training.labels is None else set(training.labels.tolist())
    missing = [repr(name) for label, name in enumerate(training.class_names) if label not in present]
    named = ", ".join(missing[:3]) + (f" and {len(missing) - 3} more" if len(missing) > 3 else "")
    return f"class {named}" if missing else ""


def _check_calibration(recipe: Recipe, calibration: Dataset | None) -> None:
    """Says before training, not after it, that there are too few calibration rows for the false-alarm rate."""
    if calibration is None:
        return
    try:
        conformal_rank(len(calibration), recipe.calibration.alpha, recipe.calibration.delta)
    except InputError as error:
        raise InputError(
            f"{error} (the recipe holds out data.calibration={recipe.data.calibration} of the data for it)"
        ) from None


def _identity(recipe: Recipe, parts: Parts, *given: nn.Module | None) -> str:
    """A digest of all that decides how training goes, the preprocessing and the network that were given among it."""
    settings = recipe.model_dump(mode="json", exclude={"name", "score", "calibration"})  # what training never looks at
    sha = hashlib.sha256(json.dumps(settings, sort_keys=True).encode())
    for module in given:
        for name, value in module.state_dict().items() if module is not None else ():
            sha.update(f"{name}|{value.dtype}|{list(value.shape)}|".encode())
            sha.update(value.detach().cpu().double().numpy().tobytes())
    for part in (parts.training, parts.validation):
        if isinstance(part, Dataset):
            for array in (part.inputs, part.labels):
                assert array is not None
                sha.update(f"{array.shape}|{array.dtype}|".encode())
                sha.update(np.ascontiguousarray(array).data)
        elif part is not None:
            sha.update(json.dumps([part.hashes, [str(path) for path in part.files], str(part.spec)]).encode())
    return sha.hexdigest()
