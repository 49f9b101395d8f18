"""What training finds out about class features and members, against brute force."""

import json
from itertools import combinations

import numpy as np
import pytest
import torch
from scipy.spatial.distance import cdist
from scipy.special import digamma, gammaln

from besnn.model import class_moments
from besnn.training.describe import NEIGHBOUR, POINTS, class_feature_entropies, member_differences
from besnn.training.fit import fit_detector


def entropy_by_hand(points):
    """Kozachenko and Leonenko's estimate, in float64."""
    n, d = points.shape
    radius = np.sort(cdist(points, points), axis=1)[:, NEIGHBOUR]
    return digamma(n) - digamma(NEIGHBOUR) + d / 2 * np.log(np.pi) - gammaln(d / 2 + 1) + d * np.log(radius).mean()


def test_entropies_and_spreads_are_those_of_brute_force(tiny_recipe, moons):
    fitted = fit_detector(tiny_recipe(), moons)
    detector, training = fitted.detector, fitted.split.training
    found = fitted.detector.provenance["measured"]["class_features"]
    model = detector.model
    with torch.no_grad():
        drawn = model.class_features(POINTS, torch.Generator().manual_seed(0))
        features = model.features(detector.preprocessing(torch.from_numpy(training.inputs)))
    spread = class_moments(drawn)[1]
    assert found["spread"] == pytest.approx(spread.mean().item(), rel=1e-5)
    assert found["least_spread"] == pytest.approx(spread.min().item(), rel=1e-5)
    generated, of_data = [], []
    for member in range(model.members):
        for label in range(model.num_classes):
            own = features[member, training.labels == label][:POINTS].double().numpy()
            of_data.append(entropy_by_hand(own))
            generated.append(entropy_by_hand(drawn[member, label, : len(own)].double().numpy()))
    assert found["entropy"] == pytest.approx(np.mean(generated) / model.feature_dim, abs=1e-4)
    assert found["data_entropy"] == pytest.approx(np.mean(of_data) / model.feature_dim, abs=1e-4)
    assert found["covered"] == np.mean(np.array(generated) >= np.array(of_data))


def test_a_class_without_inputs_has_a_spread_but_no_entropy(tiny_recipe, moons):
    detector = fit_detector(tiny_recipe("training.epochs=1"), moons).detector
    few = moons.subset(np.flatnonzero(moons.labels == 0)[:NEIGHBOUR])
    assert class_feature_entropies(detector, few).keys() == {"spread", "least_spread"}


@pytest.mark.parametrize("method", ["be-snn", "deep-ensemble"])
def test_members_differ_as_brute_force_finds(method, tiny_recipe, moons):
    fitted = fit_detector(tiny_recipe(f"method={{name: {method}, members: 3}}", "training.epochs=1"), moons)
    detector = fitted.detector
    inputs = 3 * moons.inputs
    found = member_differences(detector, {"far": inputs})
    chosen = detector.predict(inputs).member_labels
    pairs = [np.mean(one != other) for one, other in combinations(chosen, 2)]
    assert found["disagreement"]["far"] == pytest.approx(np.mean(pairs))
    evidence = torch.cat([part for part, _ in detector.outputs(inputs)], dim=1)
    own = detector.model.default_score
    each = np.stack([detector.scoring.score(evidence[[n]], torch.empty(0), own) for n in range(3)])
    assert found["score_spread"]["far"] == pytest.approx(each.std(axis=0, ddof=1).mean(), rel=1e-4)
    measured = detector.provenance["measured"]
    assert ("class_features" in measured) == (method == "be-snn")
    assert all(set(by_set) == {"known", "made-up"} for by_set in measured["members_differ"].values())
    json.dumps(detector.provenance, allow_nan=False)


def test_a_single_network_has_no_members_to_compare(tiny_recipe, moons):
    detector = fit_detector(tiny_recipe("method=softmax", "data.validation=0"), moons).detector
    assert detector.provenance["measured"] == {}
