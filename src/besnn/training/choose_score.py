"""Fit a detector's scores, and settle which one decides, without looking at any real outlier."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from besnn.data import Dataset, made_up_outliers
from besnn.data.dataset import joined
from besnn.detection import DENSITIES, CombinedScore, Density, ScoreSet, scores_for
from besnn.detection.combined import FAR as BEYOND
from besnn.detection.densities import DensitySettings, LayerDensity, density_kind, name_at_layer
from besnn.detection.score_set import COMBINED
from besnn.detector import Detector
from besnn.errors import InputError
from besnn.evaluation import ood_metrics
from besnn.model import InferenceNetwork, OODClassifier
from besnn.model.feature_layers import INPUTS, OUTPUT, PIXELS, existing_layers, layer_groups
from besnn.recipe.config import AUTO, METHOD, ScoreConfig
from besnn.training.batches import Data, in_order, open_source

ONE_CLASS = "class-gaussian"
"""The density that is always among those that decide about a single class: it is right for tables and for images."""
OF_PIXELS = "class-gaussian"
"""The density of `pixels`: how far away an input is, not only in which direction."""
NEIGHBOURS, FAR_NEIGHBOURS = "whitened-neighbour", math.log(50)
"""This density only counts beyond the surprise of one known input in fifty: it guards against classes of any shape, and adds
noise elsewhere. Chosen on the development half of `python -m benchmarks table-suite`."""
RARE = math.log(20)
"""What `score.far` names, apart from `pixels`, only counts beyond the surprise of one known input in twenty. Chosen there for
the method's own score, and for early layers on the validation images of CIFAR-10 networks and outliers made up from them."""
MOST_COVARIANCE_BYTES = 1 << 32
"""Fitting takes several times as much memory, and time that grows with the third power of the number of columns."""
FEW, FOLDS = 500, 5
"""With fewer validation inputs, densities of the inputs use them too, and refer to scores of rows left out in turn."""


def check_score(config: ScoreConfig, model: OODClassifier, held_out: int, input_shape: Sequence[int]) -> None:
    """Refuse, before training, a score or layers that `fit_scoring` could not fit to inputs of this shape and number."""
    name = config.name
    if model.num_classes == 1 and name in (METHOD, model.default_score):
        raise InputError(f"score.name={name!r} is the same for all inputs with one class: use {AUTO} or {', '.join(DENSITIES)}")
    names = [AUTO, METHOD, COMBINED, *DENSITIES, *scores_for(model.evidence_kind)]
    if name not in names:
        raise InputError(f"score.name={name!r} is unknown for {model.method}: use one of {', '.join(names)}")
    if name == COMBINED and held_out < 2:
        raise InputError("score.name='combined' needs validation data, at least two inputs: raise data.validation")
    existing_layers(model, config.layer)
    far_parts(model, config.far)
    if name in DENSITIES and len(layer_groups(config.layer)) > 1:
        several = f"score.name={name!r} uses one set of layers, and score.layer={config.layer!r} names several"
        raise InputError(f"{several}: join them with + instead of a comma, or set score.name to {COMBINED}")
    if config.layer == INPUTS:
        kinds = _settled(config, model, held_out)[1]
        _check_covariances(
            math.prod(input_shape), max((DENSITIES[kind].covariances(model.num_classes) for kind in kinds), default=0)
        )


def _check_covariances(columns: int, count: int) -> None:
    if (size := 8 * count * columns**2) > MOST_COVARIANCE_BYTES:
        what = f"{count} covariances" if count > 1 else "a covariance"
        advice = "set score.name=nearest-neighbour, or keep fewer columns"
        raise InputError(f"the score needs {what} of {columns:,} columns, which take {size / 2**30:.0f} GiB: {advice}")


def _settled(config: ScoreConfig, model: OODClassifier, held_out: int) -> tuple[str, tuple[str, ...]]:
    """Return the name of the score that is to decide, and the kinds of density to fit for it."""
    own, name, kinds = model.default_score, config.name, tuple(config.densities)
    if model.num_classes == 1 and name == AUTO:
        kinds, name = tuple(dict.fromkeys([*kinds, ONE_CLASS])), COMBINED if held_out >= 2 else ONE_CLASS
    elif name == METHOD or (name == AUTO and held_out < 2):
        name = own
    if name in scores_for(model.evidence_kind):
        return name, ()
    return name, kinds if name in (AUTO, COMBINED) else (name,)


def fit_scoring(detector: Detector, config: ScoreConfig, training: Data, validation: Dataset | None) -> None:
    """Fit the densities that a recipe asks for, combine them with the method's own score, and settle which score decides.

    The `scoring` and `layer` of the trained detector change in place. Held-out data are the reference for combining scores.
    `auto` combines; with fewer than two held-out rows it means the method's own score. With one class, that score is the same
    for all inputs: `auto` combines the densities, Gaussians among them.
    """
    held_out = 0 if validation is None else len(validation)
    check_score(config, detector.model, held_out, detector.input_shape)
    kind, own = detector.model.evidence_kind, detector.model.default_score
    name, wanted = _settled(config, detector.model, held_out)
    if name in scores_for(kind):
        detector.scoring = ScoreSet(kind, name)
        return
    combines = name in (AUTO, COMBINED)
    far = far_parts(detector.model, config.far) if combines else ()
    known: dict[str, NDArray[np.float32]] = {}
    if config.layer == INPUTS and isinstance(training, Dataset) and validation is not None and held_out < FEW:
        training = joined(training, validation)
        known = out_of_fold(detector, config, wanted, training)
    detector.scoring = ScoreSet(kind, own, fit_densities(detector, config, wanted, training, far))
    if validation is not None and combines:
        detector.scoring.combined = combine(detector, validation, far, known)
    if validation is not None and name == AUTO:
        note_made_up_outliers(detector, validation)
        name = own if detector.scoring.combined is None else COMBINED
    if name == COMBINED and detector.scoring.combined is None:
        raise InputError(
            f"score.name='combined' is not possible: {own} and all densities are the same for all validation inputs"
        )
    detector.scoring = detector.scoring.keep(name)


def far_parts(model: OODClassifier, far: str | None) -> tuple[str, ...]:
    """Return what `score.far` names and a model has: sets of layers, and `method`. A recipe's layers are for its backbone."""
    parts = map("+".join, layer_groups(far))
    return tuple(part for part in parts if part == METHOD or existing_layers(model, part) is not None)


def fit_densities(
    detector: Detector, config: ScoreConfig, kinds: Sequence[str], training: Data, far: Sequence[str] = ()
) -> dict[str, Density]:
    """Fit densities to training features, for each set of layers in the recipe, `far` ones included; return them by name."""
    near, far = existing_layers(detector.model, config.layer), [part for part in far if part != METHOD]
    detector.layer = ",".join([near or OUTPUT, *far]) if far else near
    neighbour = min(config.neighbour, config.stored_rows, len(training))
    settings = DensitySettings(neighbour, config.stored_rows)
    everywhere = [*kinds, *([OF_PIXELS] if PIXELS in far else [])]
    features, labels = _training_features(detector, settings, everywhere, training)
    densities: dict[str, Density] = {}
    for layer, columns in layer_columns(detector, features.shape[-1]).items():
        own = features[..., columns.start : columns.stop].to(detector.scoring_device)
        for kind in [OF_PIXELS] if layer == PIXELS else kinds:
            density = DENSITIES[kind].from_settings(settings).fit(own, labels)
            if layer is None:
                densities[kind] = density
            else:
                densities[name_at_layer(kind, layer)] = LayerDensity(density, columns.start, len(columns))
    return densities


def _training_features(
    detector: Detector, settings: DensitySettings, kinds: Sequence[str], training: Data
) -> tuple[Tensor, Tensor]:
    """Compute the features `[members, n, d]` and labels `[n]` of as many training inputs as the densities use."""
    limits = [DENSITIES[kind].from_settings(settings).max_rows for kind in kinds]
    rows = np.arange(len(training))
    if (most := max((limit or len(rows) for limit in limits), default=len(rows))) < len(rows):
        rows = np.sort(np.random.default_rng(0).choice(rows, most, replace=False))  # spare computing features that go unused
    feature_parts, label_parts = [], []
    for inputs, labels in in_order(open_source(training.subset(rows), torch.device("cpu")), 512):
        feature_parts += [features.cpu() for _, features in detector.outputs(inputs, detector.layer)]
        label_parts.append(labels)
    return torch.cat(feature_parts, dim=1), torch.cat(label_parts)


def layer_columns(detector: Detector, width: int) -> dict[str | None, range]:
    """Return which feature columns belong to which set of layers; a single set is None and has them all."""
    blocks = layer_groups(detector.layer)
    if len(blocks) < 2:
        return {None: range(width)}
    one = torch.zeros(1, *detector.input_shape, dtype=detector.preprocessing.dtype)
    found: dict[str | None, range] = {}
    first = 0
    for layer in map("+".join, blocks):
        network = InferenceNetwork(detector.model, detector.preprocessing, layer)
        with torch.inference_mode():
            _, features = network(one.to(detector.device))
        network.close()
        found[layer] = range(first, first := first + features.shape[-1])
    return found


def out_of_fold(detector: Detector, config: ScoreConfig, kinds: Sequence[str], data: Dataset) -> dict[str, NDArray[np.float32]]:
    """Score all rows by densities of the inputs that were fitted to other rows, `{name: [n]}`: nothing has to be held out.

    Each class is spread evenly over the folds.
    """
    assert data.labels is not None
    place = np.empty(len(data), np.int64)
    place[np.argsort(data.labels, kind="stable")] = np.arange(len(data))
    found: dict[str, list[NDArray[np.float32]]] = {}
    for fold in range(FOLDS):
        inside = place % FOLDS == fold
        densities = fit_densities(detector, config, kinds, data.subset(np.flatnonzero(~inside)))
        own = detector.scoring
        detector.scoring = ScoreSet(own.evidence_kind, own.name, densities)
        for name, scores in detector.scores(data.inputs[inside], list(densities)).items():
            found.setdefault(name, []).append(scores)
    return {name: np.concatenate(parts) for name, parts in found.items()}


def combine(
    detector: Detector,
    validation: Dataset,
    far: Sequence[str] = (),
    known: Mapping[str, NDArray[np.float32]] | None = None,
) -> CombinedScore | None:
    """Combine the method's own score with all densities.

    What is `far`, and whitened neighbours, only count where they are high. Scores that are `known` already, `{name: [n]}`, are
    the reference as they are. Scores that are the same for all inputs are left out; None if all are. With one class, only
    densities are combined.
    """
    known = known or {}
    names = [] if detector.model.num_classes == 1 else [detector.model.default_score]
    names += detector.scoring.densities
    found = {**detector.scores(validation.inputs, [name for name in names if name not in known]), **known}
    reference = {name: torch.from_numpy(scores) for name, scores in found.items() if np.ptp(scores) > 0}
    beyond = {name: FAR_NEIGHBOURS for name in reference if density_kind(name) == NEIGHBOURS}
    for part in far:
        ends = f" at {part}"
        names = [detector.model.default_score] if part == METHOD else [name for name in reference if name.endswith(ends)]
        beyond |= dict.fromkeys(names, BEYOND if part == PIXELS else RARE)
    return CombinedScore(reference, beyond) if reference else None


def note_made_up_outliers(detector: Detector, validation: Dataset) -> None:
    """Note in the detector's provenance how well the method's score, each density and their combination see made-up outliers.

    No score is chosen by these figures: one that is best on made-up outliers can be worse than chance on a real unknown class.
    """
    scoring = detector.scoring
    names = [scoring.name, *(name for name in scoring.names if name not in scoring.evidence_scores)]
    detector.provenance["score_choice"] = made_up_aurocs(detector, validation, names)


def made_up_aurocs(
    detector: Detector, validation: Dataset, names: list[str], kinds: Sequence[str] | None = None
) -> dict[str, dict[str, float]]:
    """Compute the AUROC of each score on each kind of outlier made up from validation inputs, `{score: {kind: auroc}}`."""
    known = detector.scores(validation.inputs, names)
    table: dict[str, dict[str, float]] = {name: {} for name in names}
    for kind, outliers in made_up_outliers(validation.inputs, kinds=kinds).items():
        strange = detector.scores(outliers, names)
        for name in names:
            table[name][kind] = round(ood_metrics(known[name], strange[name])["auroc"], 4)
    return table
