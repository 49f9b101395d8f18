"""What the members of an ensemble are for: how much they differ, and whether class features stay distributions."""

from collections.abc import Mapping
from itertools import combinations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from besnn.data import Dataset
from besnn.detection import scores_for
from besnn.detector import Detector
from besnn.model import BESNN, class_moments
from besnn.objective import knn_entropy
from besnn.training.batches import Data

POINTS = 256
"""Training inputs per class, and class features drawn per class, that entropies are estimated from."""
NEIGHBOUR = 3


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
