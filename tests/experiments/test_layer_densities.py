"""Feature density at several layers of one network."""

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

from besnn.data import load, made_up_outliers
from besnn.detection import CombinedScore
from besnn.model.feature_layers import layer_names
from besnn.training import build_method
from besnn.training.device import make_fabric
from besnn.training.fit import Fitted, fit_detector
from experiments.layer_densities import (
    CANDIDATE_LAYERS,
    COMBINED_LAYERS,
    at_layers,
    candidate_layers,
    layer_scores,
    made_up_by_layer,
    score_name,
)
from experiments.runs import reproduction_recipe

LAYERS = CANDIDATE_LAYERS["cifar-resnet18"]


@pytest.fixture(scope="module")
def fit(tiny_resnet, made_up_data):
    """Trains a method on half a hundred images."""

    def run(method: str, *settings: str) -> Fitted:
        held_out = ("data.validation=0.4", "data.limit=50")
        recipe = reproduction_recipe("cifar10", method, 0, [*tiny_resnet, *held_out, *settings])
        return fit_detector(recipe, load("cifar10", data_dir=made_up_data), fabric=make_fabric("fp32", "cpu"))

    return run


@pytest.fixture(scope="module")
def fitted(fit, small_generator):
    return fit("be-snn", *small_generator)


@pytest.fixture(scope="module")
def looking(fitted):
    """The detector with a density at each candidate layer."""
    config = fitted.detector.recipe.score.model_copy(update={"stored_rows": 20})
    return at_layers(fitted.detector, LAYERS, config, fitted.split.training)


@pytest.mark.parametrize(
    ("in_name", "small", "shape"),
    [("cifar10", "backbone.width=2", (3, 32, 32)), ("fashion-mnist", "backbone.widths=[2, 2, 2]", (1, 28, 28))],
)
def test_every_candidate_is_made_of_layers_of_its_backbone(in_name, small, shape):
    recipe = reproduction_recipe(in_name, "be-snn", 0, [small])
    model, _ = build_method(recipe, shape, 10)
    names = set(dict(model.feature_extractor.named_modules()))
    assert all(names.issuperset(layer_names(layer)) for layer in candidate_layers(recipe))


def test_a_score_is_the_distance_to_the_kth_nearest_stored_feature(fitted, looking):
    detector, k = fitted.detector, fitted.detector.recipe.score.neighbour
    scores = layer_scores(looking, fitted.split.validation.inputs)
    rows = np.sort(np.random.default_rng(0).choice(len(fitted.split.training), 20, replace=False))
    for layer in LAYERS:
        known, asked = fitted.split.training.subset(rows).inputs, fitted.split.validation.inputs
        unit = [torch.nn.functional.normalize(next(detector.outputs(x, layer))[1].double(), dim=-1) for x in (asked, known)]
        distances = 1 - torch.einsum("mid, mjd -> mij", *unit)
        expected = distances.sort(dim=-1).values[:, :, k - 1].mean(0)
        np.testing.assert_allclose(scores[score_name(layer)], expected, atol=0.02)  # stored in eight bits


def test_made_up_outliers_judge_each_layer_and_their_combination(fitted, looking):
    validation = fitted.split.validation
    table = made_up_by_layer(looking, validation)
    kinds = made_up_outliers(validation.inputs)
    assert all(set(of_kinds) == set(kinds) for of_kinds in table.values())
    known, strange = (layer_scores(looking, inputs) for inputs in (validation.inputs, kinds["mosaics"]))
    is_strange = np.repeat([0, 1], len(validation))

    def auroc(names):
        combined = CombinedScore({name: torch.from_numpy(known[name]) for name in names})
        scores = [combined.score({name: torch.from_numpy(each[name]) for name in names}) for each in (known, strange)]
        return roc_auc_score(is_strange, np.concatenate(scores))

    own = looking.model.default_score
    assert table[score_name("trunk")]["mosaics"] == pytest.approx(
        roc_auc_score(is_strange, np.concatenate([each[score_name("trunk")] for each in (known, strange)])), abs=1e-4
    )
    assert table["combined at head"]["mosaics"] == pytest.approx(auroc([own, score_name("head")]), abs=1e-3)
    assert table[COMBINED_LAYERS]["mosaics"] == pytest.approx(auroc([own, *map(score_name, LAYERS)]), abs=1e-3)
