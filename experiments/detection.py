"""What a run measures: accuracy, every score against every OOD set, and what the members of an ensemble are for."""

from collections.abc import Mapping
from itertools import combinations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from besnn.data import Dataset, keep_classes, load
from besnn.detection import ScoreSet, scores_for
from besnn.detection.densities import density_kind
from besnn.detector import Detector
from besnn.evaluation import ood_metrics
from besnn.model import BESNN, class_moments
from besnn.model.feature_layers import layer_groups
from besnn.objective import knn_entropy
from besnn.recipe.config import ScoreConfig
from besnn.training.batches import Data
from besnn.training.choose_score import combine, fit_densities
from besnn.training.fit import Fitted
from experiments.layer_densities import Densities, Scores, candidate_layers, fit_layers, layer_scores
from experiments.runs import Measured, Run, Workspace

UNSEEN = "unseen"
"""As in `cifar10:unseen`: the test images of the classes that a recipe does not train on."""
POINTS = 256
"""Training inputs per class, and class features drawn per class, that entropies are estimated from."""
NEIGHBOUR = 3


def measure_detection(fitted: Fitted, run: Run, workspace: Workspace) -> Measured:
    """Measure accuracy, and the OOD metrics of each score of the method (of evidence or feature density) on each OOD set."""
    detector = fitted.detector
    fit_every_density(detector, run.recipe.score, fitted.split.training, fitted.split.validation)
    layers = fit_layers(detector, candidate_layers(run.recipe), run.recipe.score, fitted.split.training)
    test = official_test_set(run.in_name, run, workspace)
    known = keep_classes(test, detector.class_names).align_classes(detector.class_names)
    unknown = {name: _unknown_set(name, test, run, workspace) for name in run.unknown}
    in_scores = _every_score(detector, layers, known)
    scores: dict[str, dict[str, object]] = {name: {} for name in in_scores}
    for set_name, dataset in unknown.items():
        out_scores = _every_score(detector, layers, dataset)
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
    if isinstance(detector.model, BESNN):
        fields["class_features"] = class_feature_entropies(detector, fitted.split.training)
    return Measured(fields, [known, *unknown.values()])


def _every_score(detector: Detector, layers: Densities, dataset: Dataset) -> Scores:
    """Return the detector's own scores, and those of nearest neighbours at other layers."""
    others = layer_scores(detector, layers, dataset.inputs) if layers else {}
    return others | detector.scores(dataset.inputs)


def fit_every_density(detector: Detector, config: ScoreConfig, training: Data, validation: Dataset | None = None) -> None:
    """Fit all densities that a recipe names, and combine the first with the method's score if there is validation data.

    The score that decides does not change.
    """
    decides = detector.scoring
    everywhere = max(1, len(layer_groups(config.layer)))
    fitted = [density_kind(name) for name in decides.densities]
    missing = [kind for kind in config.densities if fitted.count(kind) < everywhere]
    densities = decides.densities | (fit_densities(detector, config, missing, training) if missing else {})
    detector.scoring = ScoreSet(decides.evidence_kind, decides.name, densities, decides.combined)
    if decides.combined is None and validation is not None:
        detector.scoring.combined = combine(detector, config.densities[0], validation)


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


@torch.no_grad()
def class_feature_entropies(detector: Detector, training: Data) -> dict[str, float]:
    """Spread of the class features, and their entropy beside that of the data's features, in nats per dimension.

    Both entropies are estimated from equally many points, averaged over members and classes.

    Returns:
        `spread` (mean v), `entropy` (Ĥ(E_c) / d), `data_entropy` (Ĥ(Φ(x) | c) / d), and `covered`, the share of members and
        classes with Ĥ(E_c) ≥ Ĥ(Φ(x) | c). Entropies are of the classes with more than three training inputs.
    """
    model = detector.model
    assert isinstance(model, BESNN)
    assert isinstance(training, Dataset)
    assert training.labels is not None
    drawn = model.class_features(POINTS, torch.Generator().manual_seed(0))  # [members, classes, POINTS, d]
    summary = {"spread": float(class_moments(drawn)[1].mean())}
    generated, of_data = [], []
    for label in range(model.num_classes):
        rows = np.flatnonzero(training.labels == label)[:POINTS]
        if len(rows) > NEIGHBOUR:
            features = model.features(detector.preprocessing(torch.from_numpy(training.inputs[rows]).to(detector.device)))
            of_data.append(knn_entropy(features, NEIGHBOUR) / model.feature_dim)
            generated.append(knn_entropy(drawn[:, label, : len(rows)], NEIGHBOUR) / model.feature_dim)
    if of_data:
        entropy, data_entropy = torch.stack(generated), torch.stack(of_data)
        summary |= {"entropy": float(entropy.mean()), "data_entropy": float(data_entropy.mean())}
        summary["covered"] = float((entropy >= data_entropy).float().mean())
    return summary


def member_differences(detector: Detector, sets: Mapping[str, NDArray[np.generic]]) -> dict[str, dict[str, float]]:
    """How members differ on sets of inputs, by the name of the set.

    Returns:
        `disagreement`, the share of inputs for which two members choose different classes, averaged over pairs; and
        `score_spread`, the standard deviation over members of each one's own score, averaged over inputs.
    """
    evidence = {name: _evidence(detector, inputs) for name, inputs in sets.items()}
    return {
        "disagreement": {name: _disagreement(detector, each) for name, each in evidence.items()},
        "score_spread": {name: _score_spread(detector, each) for name, each in evidence.items()},
    }


def _evidence(detector: Detector, inputs: NDArray[np.generic]) -> Tensor:
    return torch.cat([evidence.float().cpu() for evidence, _ in detector.outputs(inputs)], dim=1)


def _disagreement(detector: Detector, evidence: Tensor) -> float:
    chosen = torch.stack([detector.model.log_probabilities(member[None]).argmax(-1) for member in evidence])
    pairs = list(combinations(chosen, 2))
    return float(torch.stack([(one != other).float().mean() for one, other in pairs]).mean()) if pairs else 0.0


def _score_spread(detector: Detector, evidence: Tensor) -> float:
    score = scores_for(detector.model.evidence_kind)[detector.model.default_score]
    each = torch.stack([score(member[None]) for member in evidence])
    return float(each.std(0).mean()) if len(each) > 1 else 0.0
