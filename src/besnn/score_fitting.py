"""Fitting a detector's scores, and choosing among them without looking at any real outlier."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from besnn.data import Dataset, made_up_outliers
from besnn.detection.combined import CombinedScore
from besnn.detection.density import Density
from besnn.detection.gaussians import ClassGaussianDensity
from besnn.detection.neighbours import NearestNeighbourDensity
from besnn.detection.scoring import COMBINED, Scoring
from besnn.detector import Detector
from besnn.errors import InputError
from besnn.evaluation import ood_metrics
from besnn.training.config import ScoreConfig

METHOD, AUTO = "method", "auto"


def fit_scoring(detector: Detector, config: ScoreConfig, training: Dataset, validation: Dataset | None) -> None:
    """Gives a detector its score: fits the densities that are wanted to training features, then settles which score decides.

    Args:
        detector: trained; changed in place.
        config: which score, which densities.
        training: what densities are fitted to.
        validation: held-out data, the reference for combining scores and for choosing one; without it the method's own decides.
    """
    own = detector.model.default_score
    if config.name == METHOD or (config.name == AUTO and validation is None):
        return
    detector.layer = _existing_layer(detector, config.layer)
    evidence_only = Scoring(detector.model.evidence_kind, own)
    if config.name in evidence_only.names:
        detector.scoring = Scoring(detector.model.evidence_kind, config.name)
        return
    wanted = config.densities if config.name in (AUTO, COMBINED) else (config.name,)
    densities = _fit_densities(detector, config, wanted, training)
    combined = None
    if validation is not None and densities:
        first = next(iter(densities))
        parts = Scoring(detector.model.evidence_kind, own, densities)
        reference = all_scores(detector, parts, validation.inputs, [own, first])
        combined = CombinedScore({name: torch.from_numpy(scores) for name, scores in reference.items()})
    scoring = Scoring(detector.model.evidence_kind, own, densities, combined)
    if config.name == AUTO:
        assert validation is not None
        candidates = [own, *densities, *([COMBINED] if combined is not None else [])]
        table = made_up_aurocs(detector, scoring, validation, candidates)
        detector.provenance["score_choice"] = table
        name = max(candidates, key=lambda candidate: float(np.mean(list(table[candidate].values()))))
    else:
        name = config.name
    if name not in scoring.names:
        raise InputError(f"score.name={name!r} cannot be had here: choose one of auto, method, {', '.join(scoring.names)}")
    detector.scoring = scoring.keep(name)


def all_scores(
    detector: Detector, scoring: Scoring, inputs: NDArray[np.generic], names: list[str] | None = None
) -> dict[str, NDArray[np.float32]]:
    """Several scores of the same inputs, `{name: [n]}`, with one pass through the network; all of them unless named."""
    names = scoring.names if names is None else names
    layer = detector.layer if any(name not in scoring.evidence_scores for name in names) else None
    collected: dict[str, list[Tensor]] = {name: [] for name in names}
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


def _existing_layer(detector: Detector, layer: str | None) -> str | None:
    """The layer where every extractor has one of that name."""
    if layer is None:
        return None
    present = all(layer in dict(extractor.named_modules()) for extractor in detector.model.extractors())
    return layer if present else None


def _fit_densities(detector: Detector, config: ScoreConfig, names: tuple[str, ...], training: Dataset) -> dict[str, Density]:
    neighbour = min(config.neighbour, config.stored_rows, len(training))
    makers: dict[str, Density] = {
        "nearest-neighbour": NearestNeighbourDensity(neighbour, storage="int8", max_rows=config.stored_rows),
        "class-gaussian": ClassGaussianDensity(),
    }
    if unknown := [name for name in names if name not in makers]:
        evidence = ", ".join(detector.scoring.names)
        raise InputError(f"score.name={unknown[0]!r} is unknown: use auto, method, combined, {', '.join(makers)}, {evidence}")
    assert training.labels is not None
    labels = torch.from_numpy(training.labels)
    features = torch.cat([features.cpu() for _, features in detector.outputs(training.inputs, detector.layer)], dim=1)
    return {name: makers[name].fit(features, labels) for name in names}
