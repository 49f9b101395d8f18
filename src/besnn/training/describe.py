"""What a trained network is like: whether its class features are distributions, and how its members differ."""

from collections.abc import Mapping
from itertools import combinations

import numpy as np
import torch
from torch import Tensor

from besnn.data import made_up_outliers
from besnn.data.dataset import Inputs
from besnn.detection import scores_for
from besnn.detector import Detector
from besnn.model import BESNN, class_moments
from besnn.objective import knn_entropy
from besnn.training.batches import Data, in_order, open_source
from besnn.training.split import Split

POINTS = 256
"""Training inputs per class, and class features drawn per class, that entropies are estimated from; also inputs per set."""
NEIGHBOUR = 3


def describe(detector: Detector, split: Split) -> dict[str, object]:
    """Return `class_features` of a BE-SNN, and `members_differ` of an ensemble on held-out and on made-up inputs."""
    described: dict[str, object] = {}
    if isinstance(detector.model, BESNN):
        described["class_features"] = class_feature_entropies(detector, split.training)
    if detector.model.members > 1:
        described["members_differ"] = member_differences(detector, _known_and_made_up(split))
    return described


@torch.no_grad()
def class_feature_entropies(detector: Detector, training: Data) -> dict[str, float]:
    """Compare the class features with the training inputs' features.

    Returns:
        `spread`, v averaged over members and classes, and `least_spread`, the smallest. For the classes with more than three
        training inputs also `entropy` (Ĥ(E_c) / d) and `data_entropy` (Ĥ(Φ(x) | c) / d), means in nats per dimension, both
        estimated from equally many points; and `covered`, the share of members and classes with Ĥ(E_c) ≥ Ĥ(Φ(x) | c).
    """
    model, labels = detector.model, training.labels
    assert isinstance(model, BESNN)
    assert labels is not None
    noise = torch.randn(POINTS, model.generator.noise_dim, generator=torch.Generator().manual_seed(0)).to(detector.device)
    spreads, generated, of_data = [], [], []
    for label in range(model.num_classes):
        drawn = model.generator(noise, slice(label, label + 1))  # [members, 1, POINTS, d]
        spreads.append(class_moments(drawn)[1])
        rows = np.flatnonzero(labels == label)[:POINTS]
        if len(rows) > NEIGHBOUR:
            of_data.append(knn_entropy(_features(detector, training.subset(rows)), NEIGHBOUR))
            generated.append(knn_entropy(drawn[:, 0, : len(rows)], NEIGHBOUR))
    spread = torch.cat(spreads, dim=1)
    found = {"spread": float(spread.mean()), "least_spread": float(spread.min())}
    if of_data:
        entropy, data_entropy = torch.stack(generated), torch.stack(of_data)  # [classes, members]
        means = {"entropy": entropy.mean(), "data_entropy": data_entropy.mean()}
        found |= {name: float(mean) / model.feature_dim for name, mean in means.items()}
        found["covered"] = float((entropy >= data_entropy).float().mean())
    return found


def _features(detector: Detector, data: Data) -> Tensor:
    parts = in_order(open_source(data, detector.device), POINTS)
    return torch.cat([detector.model.features(detector.preprocessing(inputs)) for inputs, _ in parts], dim=1)


def _known_and_made_up(split: Split) -> dict[str, Inputs]:
    """Return some held-out inputs (training inputs if none are held out), and as many outliers of all kinds made from them."""
    data = split.training if split.validation is None else split.validation
    some = np.linspace(0, len(data) - 1, min(len(data), POINTS)).astype(int)
    known, _ = next(in_order(open_source(data.subset(some), torch.device("cpu")), len(some)))
    if len(known) < 2:
        return {"known": known.numpy()}
    kinds = list(made_up_outliers(known.numpy()).values())
    return {"known": known.numpy(), "made-up": np.concatenate([kind[i :: len(kinds)] for i, kind in enumerate(kinds)])}


def member_differences(detector: Detector, sets: Mapping[str, Inputs]) -> dict[str, dict[str, float]]:
    """Compare the members of an ensemble on sets of inputs.

    Returns:
        `disagreement`, the share of inputs for which two members choose different classes, averaged over pairs; and
        `score_spread`, the standard deviation over members of each one's own score, averaged over inputs; both by set.
    """
    evidence = {name: _evidence(detector, inputs) for name, inputs in sets.items()}
    return {
        "disagreement": {name: _disagreement(detector, each) for name, each in evidence.items()},
        "score_spread": {name: _score_spread(detector, each) for name, each in evidence.items()},
    }


def _evidence(detector: Detector, inputs: Inputs) -> Tensor:
    return torch.cat([evidence.float().cpu() for evidence, _ in detector.outputs(inputs)], dim=1)


def _disagreement(detector: Detector, evidence: Tensor) -> float:
    chosen = torch.stack([detector.model.log_probabilities(member[None]).argmax(-1) for member in evidence])
    return float(torch.stack([(one != other).float().mean() for one, other in combinations(chosen, 2)]).mean())


def _score_spread(detector: Detector, evidence: Tensor) -> float:
    score = scores_for(detector.model.evidence_kind)[detector.model.default_score]
    return float(torch.stack([score(member[None]) for member in evidence]).std(0).mean())
