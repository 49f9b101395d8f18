"""From a recipe and data to a calibrated detector: split, pretrain, train, choose the score, calibrate."""

import hashlib
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict, Unpack

import numpy as np
import torch
from lightning.fabric import Fabric
from torch import nn

from besnn.data import Dataset
from besnn.data.dataset import varies_within_classes
from besnn.detection import DENSITIES
from besnn.detection.conformal import conformal_rank, least_scores
from besnn.detection.score_set import COMBINED
from besnn.detector import Detector
from besnn.errors import InputError
from besnn.model import OODClassifier, Preprocessing
from besnn.recipe.build import build_method, pretrained_backbone, resolve_backbone
from besnn.recipe.config import AUTO, Recipe
from besnn.training.augmentation import in_words, suit_augmentation
from besnn.training.batches import Data, open_source
from besnn.training.checkpoint import checkpoint_in, seconds_in
from besnn.training.choose_score import check_score, fit_scoring
from besnn.training.describe import describe
from besnn.training.device import make_fabric
from besnn.training.examples import keep_examples
from besnn.training.pretrain import TrainingData, kept_accuracy, plain_folder, pretrained_network
from besnn.training.progress import Reporter, Row
from besnn.training.record import provenance
from besnn.training.split import Split, split_data
from besnn.training.start import continue_from, with_old_classes_first
from besnn.training.trainer import WEIGHTS, RunOptions, Trainer, derive_seed, preserve_random_state


class RunKeywords(TypedDict, total=False):
    """The fields of `RunOptions`, as keyword arguments."""

    run_folder: Path | None
    resume: bool
    reporter: Reporter
    checkpoint_every: int
    checkpoint_pause: float
    plain_networks: Path | None


@dataclass(frozen=True)
class Fitted:
    """A detector, the metrics of its epochs, and the data that it was fitted to."""

    detector: Detector  # trained and, if the recipe holds out data for it, calibrated
    history: list[Row]  # one per epoch
    split: Split


def fit_detector(
    recipe: Recipe,
    data: Data,
    *,
    feature_extractor: nn.Module | None = None,
    preprocessing: Preprocessing | None = None,
    start: Detector | None = None,
    fabric: Fabric | None = None,
    **options: Unpack[RunKeywords],
) -> Fitted:
    """Train a detector, choose its score and calibrate it.

    When several processes train together, only the first one chooses the score and calibrates: use its detector.

    Args:
        recipe: the settings, from `load_recipe` or `parse_recipe`.
        data: labelled; in memory, or a folder that streams. All held-out data are taken from it.
        feature_extractor: your own network instead of the recipe's backbone, trained or not, from a batch to
            `[batch, backbone.feature_dim]`; see docs/convert.md. Load the detector with `Detector.load(path, model)`.
        preprocessing: from raw inputs to the network's; unless given, inputs are standardised by the training data.
        start: a trained detector to continue from, with the same recipe except for data and training; its classes come first.
        fabric: devices and precision, from `make_fabric`; one device with the recipe's precision unless given.
        **options: `run_folder`, `resume`, `reporter`, `checkpoint_every`, `checkpoint_pause` and `plain_networks`; see
            `besnn.training.RunOptions`.

    >>> from besnn.data import two_moons
    >>> from besnn.training import load_recipe
    >>> recipe = load_recipe("two-moons", ["training.epochs=1"])
    >>> fitted = fit_detector(recipe, two_moons(500))
    >>> bool(fitted.detector.predict([[0.0, 1.0], [90.0, 90.0]]).is_ood[1])
    True
    """
    _check_types(recipe, data)
    if start is not None:
        data, preprocessing = with_old_classes_first(data, start), preprocessing or start.preprocessing
    began = time.monotonic() - _seconds_before(RunOptions(**options))
    least = least_scores(recipe.calibration.alpha, recipe.calibration.delta)
    split = split_data(data, recipe.data, recipe.training.seed, least)
    _check_calibration(recipe, split.calibration)
    _check_variation(recipe, split.training)
    fabric = fabric or make_fabric(recipe.training.precision)
    run = _Run(recipe, split, feature_extractor, preprocessing, fabric, RunOptions(**options), start)
    model, history = run.train()
    detector = Detector(
        model,
        run.data.preprocessing,
        split.training.class_names,
        run.recipe if feature_extractor is None else None,  # no recipe can build the user's own network
        provenance=provenance(data.hashes, fabric.device) | {"data_note": data.note if isinstance(data, Dataset) else ""},
        feature_names=data.feature_names if isinstance(data, Dataset) else (),
        encoding=data.encoding if isinstance(data, Dataset) else None,
    )
    if fabric.is_global_zero:
        fit_scoring(detector, recipe.score, split.training, split.validation)
        keep_examples(detector, split.training, recipe.data.examples)
        detector.provenance["measured"] = describe(detector, split)
        if split.calibration is not None:
            held_out = split.calibration
            detector.calibrate(held_out.inputs, labels=held_out.labels, **recipe.calibration.model_dump())
    detector.provenance["seconds"] = round(time.monotonic() - began, 3)
    return Fitted(detector, history, split)


class _Run:
    """Training as a recipe describes it: a plain network first if there is `pretraining`, then the method itself."""

    def __init__(
        self,
        recipe: Recipe,
        split: Split,
        feature_extractor: nn.Module | None,
        preprocessing: Preprocessing | None,
        fabric: Fabric,
        options: RunOptions,
        start: Detector | None = None,
    ) -> None:
        if recipe.pretraining is not None and feature_extractor is not None:
            raise InputError("pretraining trains the recipe's own backbone: leave it out for a network of your own")
        self.split, self.fabric, self.options, self.start = split, fabric, options, start
        self.given_network, self.given_preprocessing = feature_extractor, preprocessing
        self.plain_accuracy: float | None = None
        classes = len(split.training.class_names)
        if classes == 1:
            recipe = _of_one_class(recipe)
        training = open_source(split.training, fabric.device)
        self.notes = [] if (suited := suit_augmentation(recipe, training)) is recipe else [in_words(suited.training.augment)]
        recipe = suited
        watched = split.validation if classes > 1 else None  # of one class, every prediction is right
        validation = None if watched is None else open_source(watched, fabric.device)
        preprocessing = preprocessing or Preprocessing.fit(training.sample())
        self.data = TrainingData(training, validation, preprocessing, classes)
        backbone = resolve_backbone(recipe.backbone, preprocessing.input_shape, len(training))
        self.recipe = recipe.model_copy(update={"backbone": backbone})

    def train(self) -> tuple[OODClassifier, list[Row]]:
        """Return the trained model and one row of metrics per epoch."""
        if missing := _missing_classes(self.split.training):
            self.options.reporter.say(f"no rows of {missing} are left to train on: add some, or lower data.calibration")
        for note in self.notes:
            self.options.reporter.say(note)
        if self.data.num_classes == 1:
            self.options.reporter.say("one class: a single epoch, then the density of its features decides")
        network = self.given_network if self.recipe.pretraining is None else self._pretrain()
        shape = self.data.preprocessing.input_shape
        with preserve_random_state(self.fabric.device):
            torch.manual_seed(derive_seed(self.recipe.training.seed, WEIGHTS))
            if network is None and self.recipe.backbone.weights is not None:
                network = pretrained_backbone(self.recipe.backbone, shape)
            model, objective = build_method(self.recipe, shape, self.data.num_classes, network)
        self._check_score(model)
        if self.start is not None:
            continue_from(model, self.start)
        started = None if self.start is None else self.start.model
        identity = _identity(self.recipe, self.split, self.given_preprocessing, network, started)
        trainer = Trainer(self.recipe, model, objective, self.data.preprocessing, self.fabric, self.options, identity)
        history = trainer.fit(self.data.training, self.data.validation)
        accuracy = kept_accuracy(history, self.recipe.training)
        if self.plain_accuracy is not None and accuracy is not None and self.split.validation is not None:
            self.options.reporter.say(_compared(model.method, accuracy, self.plain_accuracy, len(self.split.validation)))
        return model, history

    def _pretrain(self) -> nn.Module:
        with preserve_random_state(self.fabric.device):  # an impossible score is refused before any training
            self._check_score(build_method(self.recipe, self.data.preprocessing.input_shape, self.data.num_classes)[0])
        options = self.options
        if options.run_folder is not None and not options.resume and self.fabric.is_global_zero:
            checkpoint_in(options.run_folder).unlink(missing_ok=True)  # another run's: see Trainer
        options.reporter.say("pretraining: the backbone as a plain softmax network")
        identity = _identity(self.recipe.plain(), self.split, self.given_preprocessing)
        network, self.plain_accuracy = pretrained_network(self.recipe, self.data, self.fabric, options, identity)
        options.reporter.say(f"training: {self.recipe.method.name}, from that network's trunk")
        return network

    def _check_score(self, model: OODClassifier) -> None:
        held_out = 0 if self.split.validation is None else len(self.split.validation)
        check_score(self.recipe.score, model, held_out, self.data.preprocessing.input_shape)


def _compared(method: str, accuracy: float, plain: float, inputs: int) -> str:
    """Say how a method classifies held-out inputs beside the plain network that it started from.

    >>> _compared("be-snn", 0.78, 0.76, 100)
    'held-out accuracy: be-snn 78.0 %, the plain network before it 76.0 %'
    """
    told = f"held-out accuracy: {method} {100 * accuracy:.1f} %, the plain network before it {100 * plain:.1f} %"
    chance = 2 * (2 * plain * (1 - plain) / inputs) ** 0.5
    return f"{told}; for labels alone, --method softmax is the better choice here" if accuracy < plain - chance else told


def _of_one_class(recipe: Recipe) -> Recipe:
    """Return the recipe without what needs classes to tell apart: early stopping, a plain classifier to start from, and time.

    One epoch settles the network's statistics. More epochs only pull the features of the class together, until densities cannot
    tell unknown inputs apart.
    """
    training = recipe.training.model_copy(update={"patience": None, "epochs": 1, "least_steps": 0})
    return recipe.model_copy(update={"training": training, "pretraining": None})


def _seconds_before(options: RunOptions) -> float:
    """Return how long the earlier legs of a run took that is resumed."""
    folder = options.run_folder
    if folder is None or not options.resume:
        return 0.0
    return sum(seconds_in(checkpoint_in(each)) for each in (folder, plain_folder(folder)))


def _check_types(recipe: object, data: object) -> None:
    if not isinstance(recipe, Recipe):
        raise InputError(f"recipe is a {type(recipe).__name__}: pass one from load_recipe or parse_recipe")
    if not isinstance(data, Data):
        raise InputError(f"data is a {type(data).__name__}: pass a besnn.data.Dataset, or what besnn.data.load returns")


def _check_calibration(recipe: Recipe, calibration: Dataset | None) -> None:
    """Refuse too few calibration rows for the false-alarm rate before training, not after it."""
    if calibration is None:
        return
    try:
        conformal_rank(len(calibration), recipe.calibration.alpha, recipe.calibration.delta)
    except InputError as error:
        share = f"the recipe holds out data.calibration={recipe.data.calibration} of the data"
        raise InputError(f"{error}, or add data ({share}; more, if that leaves half of the data to train on)") from None


def _check_variation(recipe: Recipe, training: Data) -> None:
    """Refuse inputs that are all alike before training: no density of their features has a width."""
    wants_density = recipe.score.name in (AUTO, COMBINED, *DENSITIES)
    if wants_density and isinstance(training, Dataset) and not varies_within_classes(training):
        raise InputError(f"{training.name}: all inputs of a class are equal, so there is nothing to learn: check its columns")


def _missing_classes(training: Data) -> str:
    """Name the classes without rows."""
    present = set() if training.labels is None else set(training.labels.tolist())
    missing = [repr(name) for label, name in enumerate(training.class_names) if label not in present]
    names = ", ".join(missing[:3]) + (f" and {len(missing) - 3} more" if len(missing) > 3 else "")
    return f"class {names}" if missing else ""


def _identity(recipe: Recipe, split: Split, *given: nn.Module | None) -> str:
    """Compute a digest of everything that training depends on, including a given preprocessing and network."""
    settings = recipe.model_dump(mode="json", exclude={"name", "score", "calibration"})  # these have no influence on training
    sha = hashlib.sha256(json.dumps(settings, sort_keys=True).encode())
    for module in given:
        for name, value in module.state_dict().items() if module is not None else ():
            sha.update(f"{name}|{value.dtype}|{list(value.shape)}|".encode())
            sha.update(value.detach().cpu().double().numpy().tobytes())
    for part in (split.training, split.validation):
        if isinstance(part, Dataset):
            for array in (part.inputs, part.labels, part.weights):
                if array is None:
                    continue
                sha.update(f"{array.shape}|{array.dtype}|".encode())
                sha.update(np.ascontiguousarray(array).data)
        elif part is not None:
            sha.update(json.dumps([part.hashes, [str(path) for path in part.files], str(part.spec)]).encode())
    return sha.hexdigest()
