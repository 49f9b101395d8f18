"""Fitting a detector's scores, and choosing among them without looking at any real outlier."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from besnn.data import Dataset, made_up_outliers
from besnn.detection.block import BlockDensity, block_name, kind_of
from besnn.detection.combined import CombinedScore
from besnn.detection.density import DENSITIES, Density
from besnn.detection.gaussians import ClassGaussianDensity
from besnn.detection.neighbours import NearestNeighbourDensity
from besnn.detection.scores import scores_for
from besnn.detection.scoring import COMBINED, Scoring
from besnn.detector import Detector
from besnn.errors import InputError
from besnn.evaluation import ood_metrics
from besnn.model import InferenceNetwork, OODClassifier
from besnn.model.feature_layers import existing_layers, layer_groups
from besnn.recipe.config import AUTO, METHOD, ScoreConfig
from besnn.training.batches import Data, in_order, open_source


def check_score(config: ScoreConfig, model: OODClassifier, held_out: int) -> None:
    """Refuses a name or layers that `fit_scoring` would not know or could not fit; to be called before training.

    Args:
        config: the recipe's.
        model: what it is about.
        held_out: how many validation inputs there are.
    """
    name = config.name
    names = [AUTO, METHOD, COMBINED, *DENSITIES, *scores_for(model.evidence_kind)]
    if name not in names:
        raise InputError(f"score.name={name!r} is unknown for {model.method}: use one of {', '.join(names)}")
    if name == COMBINED and held_out < 2:
        raise InputError("score.name='combined' needs validation data, two inputs at least: raise data.validation")
    existing_layers(model, config.layer)
    if name in DENSITIES and len(layer_groups(config.layer)) > 1:
        raise InputError(
            f"score.name={name!r} looks at one layer or at several together, not at {config.layer}: "
            f"write + in place of the comma, or set score.name to {COMBINED}"
        )


def fit_scoring(detector: Detector, config: ScoreConfig, training: Data, validation: Dataset | None) -> None:
    """Gives a detector its score: fits the densities that are wanted to training features, then settles which score decides.

    Args:
        detector: trained; changed in place.
        config: which score, which densities.
        training: what densities are fitted to.
        validation: held-out data, the reference for combining scores and for choosing one; with fewer than two rows of it
            `auto` means the method's own score.
    """
    check_score(config, detector.model, held_out=0 if validation is None else len(validation))
    kind, own = detector.model.evidence_kind, detector.model.default_score
    name = config.name
    if name == METHOD or (name == AUTO and (validation is None or len(validation) < 2)):
        name = own
    if name in scores_for(kind):
        detector.scoring = Scoring(kind, name)
        return
    wanted = config.densities if name in (AUTO, COMBINED) else (name,)
    densities = fit_densities(detector, config, wanted, training)
    combined = None
    if validation is not None and name in (AUTO, COMBINED):
        combined = combine(detector, of_kind(densities, wanted[0]), validation)
    scoring = Scoring(kind, own, densities, combined)
    if name == AUTO:
        assert validation is not None
        candidates = [own, *densities, *([COMBINED] if combined is not None else [])]
        table = made_up_aurocs(detector, scoring, validation, candidates)
        detector.provenance["score_choice"] = table
        name = max(candidates, key=lambda candidate: float(np.mean(list(table[candidate].values()))))
    if name == COMBINED and combined is None:
        raise InputError(f"score.name='combined' cannot be had: {own} or a density is the same for all validation inputs")
    detector.scoring = scoring.keep(name)


def all_scores(
    detector: Detector, scoring: Scoring, inputs: NDArray[np.generic], names: list[str] | None = None
) -> dict[str, NDArray[np.float32]]:
    """Several scores of the same inputs, `{name: [n]}`, with one pass through the network; all of them unless named."""
    names = scoring.names if names is None else names
    layer = detector.layer if any(name not in scoring.evidence_scores for name in names) else None
    collected: dict[str, list[Tensor]] = {name: [torch.empty(0)] for name in names}
    for evidence, features in detector.outputs(inputs, layer):
        for name in names:
            collected[name].append(scoring.score(evidence, features, name).float().cpu())
    return {name: torch.cat(parts).numpy() for name, parts in collected.items()}


def made_up_aurocs(detector: Detector, scoring: Scoring, validation: Dataset, names: list[str]) -> dict[str, dict[str, float]]:
    """AUROC of each score on each kind of outlier made up from validation inputs, `{score: {kind: auroc}}`."""
    known = all_scores(detector, scoring, validation.inputs, names)
    table: dict[str, dict[str, float]] = {name: {} for name in names}
    for kind, outliers in made_up_outliers(validation.inputs).items():
        strange = all_scores(detector, scoring, outliers, names)
        for name in names:
            table[name][kind] = round(ood_metrics(known[name], strange[name])["auroc"], 4)
    return table


def of_kind(densities: Mapping[str, Density], kind: str) -> dict[str, Density]:
    """The densities of one kind, at whatever layer."""
    return {name: density for name, density in densities.items() if kind_of(name) == kind}


def fit_densities(detector: Detector, config: ScoreConfig, kinds: Sequence[str], training: Data) -> dict[str, Density]:
    """Densities of those kinds by name, fitted to training features: at the recipe's layers together, or at each set apart."""
    detector.layer = existing_layers(detector.model, config.layer)
    rows = np.arange(len(training))
    alone = tuple(kinds) == ("nearest-neighbour",)  # it would draw among the features, all computed
    if alone and len(rows) > config.stored_rows:
        rows = np.sort(np.random.default_rng(0).choice(rows, config.stored_rows, replace=False))
    neighbour = min(config.neighbour, config.stored_rows, len(rows))
    feature_parts, label_parts = [], []
    for inputs, labels in in_order(open_source(training.subset(rows), torch.device("cpu")), 512):
        feature_parts += [features.cpu() for _, features in detector.outputs(inputs, detector.layer)]
        label_parts.append(labels)
    features, labels = torch.cat(feature_parts, dim=1), torch.cat(label_parts)

    def make(kind: str) -> Density:
        if kind == "nearest-neighbour":
            return NearestNeighbourDensity(neighbour, storage="int8", max_rows=config.stored_rows)
        return ClassGaussianDensity()

    densities: dict[str, Density] = {}
    for layer, block in _blocks(detector, features.shape[-1]).items():
        own = features[..., block.start : block.stop].to(detector.scoring_device)
        for kind in kinds:
            density = make(kind).fit(own, labels)
            if layer is None:
                densities[kind] = density
            else:
                densities[block_name(kind, layer)] = BlockDensity(density, block.start, len(block))
    return densities


def _blocks(detector: Detector, width: int) -> dict[str | None, range]:
    """Which features belong to which of the layers that stand apart; all of them to none where nothing does."""
    blocks = layer_groups(detector.layer)
    if len(blocks) < 2:
        return {None: range(width)}
    one = torch.zeros(1, *detector.input_shape, dtype=torch.uint8 if len(detector.input_shape) == 3 else torch.float32)
    found: dict[str | None, range] = {}
    first = 0
    for layer in map("+".join, blocks):
        with torch.inference_mode():
            _, features = InferenceNetwork(detector.model, detector.preprocessing, layer)(one.to(detector.device))
        found[layer] = range(first, first := first + features.shape[-1])
    return found


def combine(detector: Detector, densities: Mapping[str, Density], validation: Dataset) -> CombinedScore | None:
    """The method's own score with some densities; None where one of them tells no validation inputs apart."""
    own = detector.model.default_score
    scoring = Scoring(detector.model.evidence_kind, own, densities)
    reference = all_scores(detector, scoring, validation.inputs, [own, *densities])
    if any(np.ptp(scores) == 0 for scores in reference.values()):
        return None
    return CombinedScore({name: torch.from_numpy(scores) for name, scores in reference.items()})
