"""Feature density at several layers of one trained network, in one pass: which layer detects outliers best?"""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from besnn.data import Dataset, made_up_outliers
from besnn.detection import CombinedScore, NearestNeighbourDensity, scores_for
from besnn.detection.densities import name_at_layer
from besnn.detector import Detector
from besnn.evaluation import ood_metrics
from besnn.model.feature_layers import layer_features, layer_names
from besnn.model.inference import GPU_TYPE
from besnn.recipe.config import ScoreConfig
from besnn.training import Recipe
from besnn.training.batches import Data, in_order, open_source

Scores = dict[str, NDArray[np.float32]]
Densities = dict[str, NearestNeighbourDensity]

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


@torch.inference_mode()
def layer_outputs(
    detector: Detector, layers: Sequence[str], inputs: NDArray[np.generic] | Tensor, batch_size: int = 512
) -> Iterator[tuple[Tensor, dict[str, Tensor]]]:
    """Yield evidence `[members, batch, classes]` and each layer's features `[members, batch, d]`, batch by batch.

    Several layers that are joined, as in `trunk.stage1+trunk`, count as one.
    """
    model = detector.model
    seen: dict[str, list[Tensor]] = {name: [] for layer in layers for name in layer_names(layer)}
    handles = [
        extractor.get_submodule(name).register_forward_hook(lambda *call, name=name: seen[name].append(call[2]))
        for extractor in model.extractors()
        for name in seen
    ]
    try:
        for batch in torch.from_numpy(np.require(inputs, requirements=["C", "W"])).split(batch_size):
            x = detector.preprocessing(batch.to(detector.device))
            with torch.autocast(x.device.type, GPU_TYPE, enabled=x.is_cuda):  # as the detector does
                features = model.features(x)
            evidence = model.evidence(features.to(x.dtype))
            yield evidence, {layer: layer_features(seen, layer, model.members, evidence.dtype) for layer in layers}
            for parts in seen.values():
                parts.clear()
    finally:
        for handle in handles:
            handle.remove()


def fit_layers(detector: Detector, layers: Sequence[str], config: ScoreConfig, training: Data) -> Densities:
    """Fit a nearest-neighbour density at each layer, to as many training inputs as the recipe stores."""
    if not layers:
        return {}
    rows = np.arange(len(training))
    if len(rows) > config.stored_rows:
        rows = np.sort(np.random.default_rng(0).choice(rows, config.stored_rows, replace=False))
    parts: dict[str, list[Tensor]] = {layer: [] for layer in layers}
    for inputs, _ in in_order(open_source(training.subset(rows), torch.device("cpu")), 512):
        for _, features in layer_outputs(detector, layers, inputs):
            for layer in layers:
                parts[layer].append(features[layer].cpu())
    k = min(config.neighbour, len(rows))
    return {layer: NearestNeighbourDensity(k, storage="int8").fit(torch.cat(parts[layer], dim=1)) for layer in layers}


def layer_scores(detector: Detector, densities: Densities, inputs: NDArray[np.generic]) -> Scores:
    """Return the score of the method's paper, and the nearest-neighbour score at each layer, `{name: [n]}`."""
    own = detector.model.default_score
    collected: dict[str, list[Tensor]] = {own: [], **{score_name(layer): [] for layer in densities}}
    for evidence, features in layer_outputs(detector, list(densities), inputs):
        collected[own].append(scores_for(detector.model.evidence_kind)[own](evidence).float().cpu())
        for layer, density in densities.items():
            collected[score_name(layer)].append(density.score(features[layer]).float().cpu())
    return {name: torch.cat(parts).numpy() for name, parts in collected.items()}


def made_up_by_layer(detector: Detector, densities: Densities, validation: Dataset) -> dict[str, dict[str, float]]:
    """Return `{score: {kind: auroc}}` on made-up outliers: of each layer, with the paper's score, and of all combined."""
    if not densities:
        return {}
    known = layer_scores(detector, densities, validation.inputs)
    table: dict[str, dict[str, float]] = {}
    for kind, outliers in made_up_outliers(validation.inputs).items():
        strange = layer_scores(detector, densities, outliers)
        for name, members in _combinations(detector.model.default_score, densities).items():
            in_scores, out_scores = (_combine(known, scores, members) for scores in (known, strange))
            table.setdefault(name, {})[kind] = round(ood_metrics(in_scores, out_scores)["auroc"], 4)
    return table


def _combinations(own: str, densities: Densities) -> dict[str, list[str]]:
    """Return scores by name, each with the scores that it combines."""
    single = [score_name(layer) for layer in densities]
    return {
        **{name: [name] for name in single},
        **{f"combined at {layer}": [own, score_name(layer)] for layer in densities},
        COMBINED_LAYERS: [own, *single],
    }


def _combine(reference: Mapping[str, NDArray[np.float32]], scores: Scores, names: list[str]) -> NDArray[np.float32]:
    if len(names) == 1:
        return scores[names[0]]
    combined = CombinedScore({name: torch.from_numpy(reference[name]) for name in names})
    return combined.score({name: torch.from_numpy(scores[name]) for name in names}).float().numpy()
