"""What a run measures: accuracy, every score against every OOD set, and what the members of an ensemble are for."""

from collections.abc import Sequence

import numpy as np
import torch

from besnn.data import Dataset, keep_classes, load
from besnn.detection import Density, ScoreSet
from besnn.detection.densities import density_kind
from besnn.detector import Detector
from besnn.evaluation import ood_metrics
from besnn.model.feature_layers import layer_groups
from besnn.recipe.config import ScoreConfig
from besnn.training.batches import Data
from besnn.training.choose_score import combine, fit_densities
from besnn.training.describe import member_differences
from besnn.training.fit import Fitted
from experiments.layer_densities import Scores, at_layers, candidate_layers, layer_scores
from experiments.runs import Measured, Run, Workspace

UNSEEN = "unseen"
"""As in `cifar10:unseen`: the test images of the classes that a recipe does not train on."""
FURTHER_DENSITIES = ("class-gaussian",)
"""Measured beside those of a recipe, and not combined."""


def measure_detection(fitted: Fitted, run: Run, workspace: Workspace) -> Measured:
    """Measure accuracy, and the OOD metrics of each score of the method (of evidence or feature density) on each OOD set."""
    detector = fitted.detector
    fit_every_density(detector, run.recipe.score, fitted.split.training, fitted.split.validation)
    layers = candidate_layers(run.recipe)
    detectors = [detector, *([at_layers(detector, layers, run.recipe.score, fitted.split.training)] if layers else [])]
    test = official_test_set(run.in_name, run, workspace)
    known = keep_classes(test, detector.class_names).align_classes(detector.class_names)
    unknown = {name: _unknown_set(name, test, run, workspace) for name in run.unknown}
    in_scores = _every_score(detectors, known)
    scores: dict[str, dict[str, object]] = {name: {} for name in in_scores}
    for set_name, dataset in unknown.items():
        out_scores = _every_score(detectors, dataset)
        for name, of_known in in_scores.items():
            scores[name][set_name] = ood_metrics(of_known, out_scores[name])
    fields: dict[str, object] = {
        "accuracy": accuracy_of(detector, known),
        "default_score": detector.scoring.name,
        "scores": scores,
    }
    if detector.model.members > 1:
        sets = {name: dataset.inputs for name, dataset in {run.in_name: known, **unknown}.items()}
        fields["members_differ"] = member_differences(detector, sets)
    return Measured(fields, [known, *unknown.values()])


def _every_score(detectors: Sequence[Detector], dataset: Dataset) -> Scores:
    """Return the scores of a detector, and those of its network with densities at other layers."""
    own, *others = detectors
    at_other_layers = {name: score for each in others for name, score in layer_scores(each, dataset.inputs).items()}
    return at_other_layers | own.scores(dataset.inputs)


def fit_every_density(detector: Detector, config: ScoreConfig, training: Data, validation: Dataset | None = None) -> None:
    """Fit the recipe's densities, combine them with the method's score if there is validation data, and fit further ones.

    The score that decides does not change.
    """
    decides = detector.scoring
    everywhere = max(1, len(layer_groups(config.layer)))
    fitted = [density_kind(name) for name in decides.densities]

    def missing(kinds: Sequence[str]) -> dict[str, Density]:
        left = [kind for kind in kinds if fitted.count(kind) < everywhere]
        return fit_densities(detector, config, left, training) if left else {}

    every = decides.densities | missing(config.densities)
    own = {name: density for name, density in every.items() if density_kind(name) in config.densities}
    detector.scoring = ScoreSet(decides.evidence_kind, decides.name, own, decides.combined)
    if decides.combined is None and validation is not None:
        detector.scoring.combined = combine(detector, validation)
    detector.scoring.densities |= every | missing(FURTHER_DENSITIES)


def accuracy_of(detector: Detector, known: Dataset) -> float:
    """Return the share of inputs whose most probable class is their label."""
    choices = [detector.model.log_probabilities(evidence).argmax(1).cpu() for evidence, _ in detector.outputs(known.inputs)]
    return float(np.mean(torch.cat(choices).numpy() == known.labels))


def official_test_set(name: str, run: Run, workspace: Workspace) -> Dataset:
    """Load the official test split; a recipe that limits training rows limits these too, for quick trials."""
    dataset = load(name, split="test", data_dir=workspace.data_dir)
    limit = run.recipe.data.limit
    return dataset if limit is None else dataset.subset(np.arange(min(limit, len(dataset))))


def _unknown_set(name: str, test: Dataset, run: Run, workspace: Workspace) -> Dataset:
    if name != f"{run.in_name}:{UNSEEN}":
        return official_test_set(name, run, workspace)
    return keep_classes(test, set(test.class_names) - set(run.recipe.data.classes or test.class_names))
