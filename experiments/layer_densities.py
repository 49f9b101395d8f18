"""Feature density at several layers of one trained network: which layer detects outliers best?"""

import copy
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from besnn.data import Dataset, made_up_outliers
from besnn.detection import CombinedScore, ScoreSet
from besnn.detection.densities import name_at_layer
from besnn.detector import Detector
from besnn.evaluation import ood_metrics
from besnn.recipe.config import ScoreConfig
from besnn.training import Recipe
from besnn.training.batches import Data
from besnn.training.choose_score import fit_densities

Scores = dict[str, NDArray[np.float32]]

CANDIDATE_LAYERS = {
    "fashion-convnet": ("trunk.3", "trunk.7", "trunk", "trunk.3+trunk", "trunk.3+trunk.7+trunk"),
    "cifar-resnet18": (
        "trunk.stage1",
        "trunk.stage2",
        "trunk.stage3",
        "trunk",
        "head",
        "trunk.stage2+trunk",
        "trunk.stage1+trunk.stage2+trunk.stage3+trunk",
    ),
}
"""By backbone, the layers that `score.layer` could name."""
COMBINED_LAYERS = "combined over layers"


def candidate_layers(recipe: Recipe) -> tuple[str, ...]:
    """Return the layers to compare; none if there are no candidates for the backbone.

    >>> from besnn.training import load_recipe
    >>> candidate_layers(load_recipe("cifar10"))[0], candidate_layers(load_recipe("digits"))
    ('trunk.stage1', ())
    """
    return CANDIDATE_LAYERS.get(recipe.backbone.name, ())


def score_name(layer: str) -> str:
    """Return the name of the nearest-neighbour score at a layer in records."""
    return name_at_layer("nearest-neighbour", layer)


def at_layers(detector: Detector, layers: Sequence[str], config: ScoreConfig, training: Data) -> Detector:
    """Return the detector with a nearest-neighbour density at each of the layers, in place of its own densities."""
    other = copy.copy(detector)
    settings = config.model_copy(update={"layer": ",".join(layers)})
    densities = fit_densities(other, settings, ["nearest-neighbour"], training)
    other.scoring = ScoreSet(detector.model.evidence_kind, detector.model.default_score, densities)
    return other


def layer_scores(detector: Detector, inputs: NDArray[np.generic]) -> Scores:
    """Return the score of the method's paper, and the nearest-neighbour score at each layer, `{name: [n]}`."""
    return detector.scores(inputs, [detector.model.default_score, *detector.scoring.densities])


def made_up_by_layer(detector: Detector, validation: Dataset) -> dict[str, dict[str, float]]:
    """Return `{score: {kind: auroc}}` on made-up outliers: of each layer, with the paper's score, and of all combined."""
    known = layer_scores(detector, validation.inputs)
    table: dict[str, dict[str, float]] = {}
    for kind, outliers in made_up_outliers(validation.inputs).items():
        strange = layer_scores(detector, outliers)
        for name, members in _combinations(detector).items():
            in_scores, out_scores = (_combine(known, scores, members) for scores in (known, strange))
            table.setdefault(name, {})[kind] = round(ood_metrics(in_scores, out_scores)["auroc"], 4)
    return table


def _combinations(detector: Detector) -> dict[str, list[str]]:
    """Return scores by name, each with the scores that it combines."""
    own, single = detector.model.default_score, list(detector.scoring.densities)
    return {
        **{name: [name] for name in single},
        **{name.replace("nearest-neighbour", "combined"): [own, name] for name in single},
        COMBINED_LAYERS: [own, *single],
    }


def _combine(reference: Mapping[str, NDArray[np.float32]], scores: Scores, names: list[str]) -> NDArray[np.float32]:
    if len(names) == 1:
        return scores[names[0]]
    combined = CombinedScore({name: torch.from_numpy(reference[name]) for name in names})
    return combined.score({name: torch.from_numpy(scores[name]) for name in names}).float().numpy()
