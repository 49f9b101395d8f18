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
    candidate_layers,
    fit_layers,
    layer_outputs,
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
def densities(fitted):
    config = fitted.detector.recipe.score.model_copy(update={"stored_rows": 20})
    return fit_layers(fitted.detector, LAYERS, config, fitted.split.training)


@pytest.mark.parametrize(
    ("in_name", "small", "shape"),
    [("cifar10", "backbone.width=2", (3, 32, 32)), ("fashion-mnist", "backbone.widths=[2, 2, 2]", (1, 28, 28))],
)
def test_every_candidate_is_made_of_layers_of_its_backbone(in_name, small, shape):
    recipe = reproduction_recipe(in_name, "be-snn", 0, [small])
    model, _ = build_method(recipe, shape, 10)
    names = set(dict(model.feature_extractor.named_modules()))
    assert all(names.issuperset(layer_names(layer)) for layer in candidate_layers(recipe))


@pytest.mark.parametrize("method", ["be-snn", "deep-ensemble"])
def test_one_pass_reads_what_the_detector_reads_layer_by_layer(method, fit, fitted):
    fitted = fitted if method == "be-snn" else fit(method)
    detector, inputs = fitted.detector, fitted.split.validation.inputs
    layers = [*LAYERS, "head+trunk.stem"]
    for evidence, features in layer_outputs(detector, layers, inputs):
        assert list(features) == layers
        for layer in layers:
            ((expected_evidence, expected),) = detector.outputs(inputs, layer)
            torch.testing.assert_close(features[layer], expected, rtol=1e-3, atol=1e-5)
            torch.testing.assert_close(evidence, expected_evidence, rtol=1e-3, atol=1e-4)
    assert not any(module._forward_hooks for module in detector.model.modules())


def test_a_score_is_the_distance_to_the_kth_nearest_stored_feature(fitted, densities):
    detector, k = fitted.detector, fitted.detector.recipe.score.neighbour
    scores = layer_scores(detector, densities, fitted.split.validation.inputs)
    rows = np.sort(np.random.default_rng(0).choice(len(fitted.split.training), 20, replace=False))
    (_, stored), *_ = layer_outputs(detector, LAYERS, fitted.split.training.subset(rows).inputs)
    (_, asked), *_ = layer_outputs(detector, LAYERS, fitted.split.validation.inputs)
    for layer in LAYERS:
        unit = [torch.nn.functional.normalize(each[layer].double(), dim=-1) for each in (asked, stored)]
        distances = 1 - torch.einsum("mid, mjd -> mij", *unit)
        expected = distances.sort(dim=-1).values[:, :, k - 1].mean(0)
        np.testing.assert_allclose(scores[score_name(layer)], expected, atol=0.02)  # stored in eight bits


def test_made_up_outliers_judge_each_layer_and_their_combination(fitted, densities):
    detector, validation = fitted.detector, fitted.split.validation
    table = made_up_by_layer(detector, densities, validation)
    kinds = made_up_outliers(validation.inputs)
    assert all(set(of_kinds) == set(kinds) for of_kinds in table.values())
    known, strange = (layer_scores(detector, densities, inputs) for inputs in (validation.inputs, kinds["mosaics"]))
    is_strange = np.repeat([0, 1], len(validation))

    def auroc(names):
        combined = CombinedScore({name: torch.from_numpy(known[name]) for name in names})
        scores = [combined.score({name: torch.from_numpy(each[name]) for name in names}) for each in (known, strange)]
        return roc_auc_score(is_strange, np.concatenate(scores))

    own = detector.model.default_score
    assert table[score_name("trunk")]["mosaics"] == pytest.approx(
        roc_auc_score(is_strange, np.concatenate([each[score_name("trunk")] for each in (known, strange)])), abs=1e-4
    )
    assert table["combined at head"]["mosaics"] == pytest.approx(auroc([own, score_name("head")]), abs=1e-3)
    assert table[COMBINED_LAYERS]["mosaics"] == pytest.approx(auroc([own, *map(score_name, LAYERS)]), abs=1e-3)


def test_without_layers_nothing_is_done(fitted):
    assert fit_layers(fitted.detector, (), fitted.detector.recipe.score, fitted.split.training) == {}
    assert made_up_by_layer(fitted.detector, {}, fitted.split.validation) == {}
