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
from besnn.model import BESNN
from besnn.objective import knn_entropy

POINTS = 256
"""Training inputs per class, and class features drawn per class, that entropies are estimated from."""


def class_feature_entropies(detector: Detector, training: Dataset) -> dict[str, float]:
    """Spread of the class features, and their entropy beside that of the data's features, in nats per dimension.

    Both entropies are estimated from equally many points, averaged over members and classes.

    Returns:
        `spread` (mean v), `entropy` (Ĥ(E_c) / d), `data_entropy` (Ĥ(Φ(x) | c) / d), and `covered`, the share of members and
        classes with Ĥ(E_c) ≥ Ĥ(Φ(x) | c).
    """
    model = detector.model
    assert isinstance(model, BESNN)
    assert training.labels is not None
    generated, of_data, spread = [], [], []
    for label in range(model.num_classes):
        rows = np.flatnonzero(training.labels == label)[:POINTS]
        with torch.inference_mode():
            x = detector.preprocessing(torch.from_numpy(training.inputs[rows]).to(detector.device))
            features = model.features(x)
            drawn = model.class_features(len(rows), torch.Generator().manual_seed(label))[:, label]
        of_data.append(knn_entropy(features) / model.feature_dim)
        generated.append(knn_entropy(drawn) / model.feature_dim)
        spread.append((drawn - drawn.mean(1, keepdim=True)).square().sum(-1).mean(1))
    entropy, data_entropy = torch.stack(generated), torch.stack(of_data)
    return {
        "spread": float(torch.stack(spread).mean()),
        "entropy": float(entropy.mean()),
        "data_entropy": float(data_entropy.mean()),
        "covered": float((entropy >= data_entropy).float().mean()),
    }


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
