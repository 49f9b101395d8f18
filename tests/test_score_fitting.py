import dataclasses

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

from besnn.baselines import SoftmaxClassifier
from besnn.data import made_up_outliers, two_moons
from besnn.detector import Detector
from besnn.errors import InputError
from besnn.fitting import fit_detector
from besnn.layers import tile
from besnn.model import Preprocessing, mlp
from besnn.score_fitting import all_scores, fit_scoring, made_up_aurocs
from besnn.training.config import ScoreConfig
from besnn.training.reporting import Silent


@pytest.fixture(scope="module")
def fitted(tiny_recipe, stripes):
    recipe = tiny_recipe("backbone.hidden=[4, 4]", "data.calibration=0.35", "training.epochs=2", "score.name=method")
    return fit_detector(recipe, stripes)


@pytest.fixture
def detector(fitted):
    """Trained, with nothing but its method's own score."""
    trained = fitted.detector
    return Detector(trained.model, trained.preprocessing, trained.class_names, trained.recipe)


def training_features(detector, fitted, layer):
    return torch.cat([features for _, features in detector.outputs(fitted.parts.training.inputs, layer)], dim=1)


@pytest.mark.parametrize("layer", ["trunk", None, "attic"])
def test_densities_look_at_training_features_of_the_layer(layer, detector, fitted):
    config = ScoreConfig(name="nearest-neighbour", neighbour=3, layer=layer)
    fit_scoring(detector, config, fitted.parts.training, fitted.parts.validation)
    assert detector.layer == ("trunk" if layer == "trunk" else None)
    features = training_features(detector, fitted, detector.layer)
    validation = fitted.parts.validation.inputs
    queries = torch.cat([features for _, features in detector.outputs(validation, detector.layer)], dim=1)
    cosine = torch.nn.functional.normalize(queries, dim=-1) @ torch.nn.functional.normalize(features, dim=-1).mT
    third = (1 - cosine).kthvalue(3, dim=-1).values.mean(dim=0)
    np.testing.assert_allclose(detector.score(validation), third, atol=0.02)  # features are stored in 8 bits
    assert list(detector.scoring.densities) == ["nearest-neighbour"]


@pytest.mark.parametrize("layer", ["trunk.3+trunk", "trunk+trunk.3"])
def test_several_layers_are_looked_at_together(layer, detector, fitted):
    config = ScoreConfig(name="nearest-neighbour", neighbour=3, layer=layer)
    fit_scoring(detector, config, fitted.parts.training, None)
    assert detector.layer == layer
    model, distances = detector.model.extractors()[0], []
    x, stored = (
        detector.preprocessing(torch.from_numpy(part.inputs)) for part in (fitted.parts.validation, fitted.parts.training)
    )
    for depth in (4, None):
        with torch.no_grad():
            each = [model.trunk[:depth](tile(part, 2)).flatten(1).unflatten(0, (2, -1)) for part in (x, stored)]
        unit = [torch.nn.functional.normalize(features.double(), dim=-1) for features in each]
        distances.append(1 - unit[0] @ unit[1].mT)
    third = torch.stack(distances).mean(0).kthvalue(3, dim=-1).values.mean(dim=0)  # 1 − the mean of the layers' cosines
    np.testing.assert_allclose(detector.score(fitted.parts.validation.inputs), third, atol=0.02)  # stored in 8 bits


@pytest.mark.parametrize("densities", [["nearest-neighbour"], ["nearest-neighbour", "class-gaussian"]])
def test_only_so_many_rows_are_stored(densities, detector, fitted):
    config = ScoreConfig(name="combined", neighbour=50, stored_rows=7, densities=densities)
    fit_scoring(detector, config, fitted.parts.training, fitted.parts.validation)
    tensors, _ = detector.scoring.state()
    assert tensors["density/nearest-neighbour/codes"].shape[1] == 7
    assert tensors["density/nearest-neighbour/k"] == 7  # no neighbour is farther than the last
    stored = tensors["density/nearest-neighbour/codes"].float() * tensors["density/nearest-neighbour/scale"]
    features = torch.nn.functional.normalize(training_features(detector, fitted, detector.layer), dim=-1)
    nearest = torch.cdist(stored, features).amin(dim=-1)
    assert nearest.max() < 0.05  # every stored row is one of training's


def test_the_combination_refers_to_validation_rows(detector, fitted):
    config = ScoreConfig(name="combined", neighbour=3, densities=("class-gaussian", "nearest-neighbour"))
    fit_scoring(detector, config, fitted.parts.training, fitted.parts.validation)
    assert list(detector.scoring.densities) == ["class-gaussian"]  # the first one; the other is not needed any more
    reference = detector.scoring.combined.reference
    assert set(reference) == {"tempered-entropy", "class-gaussian"}
    for name, scores in reference.items():
        assert np.array_equal(scores.numpy(), np.sort(detector.score(fitted.parts.validation.inputs, name)))


def test_auto_takes_the_best_on_made_up_outliers_and_tells(detector, fitted):
    fit_scoring(detector, ScoreConfig(neighbour=3), fitted.parts.training, fitted.parts.validation)
    table = detector.provenance["score_choice"]
    assert list(table) == ["tempered-entropy", "nearest-neighbour", "combined"]
    kinds = set(made_up_outliers(fitted.parts.validation.inputs))
    assert all(set(row) == kinds for row in table.values())
    means = {name: np.mean(list(row.values())) for name, row in table.items()}
    assert detector.scoring.name == max(means, key=means.get)


def test_the_table_against_scikit_learn(detector, fitted):
    validation = fitted.parts.validation
    table = made_up_aurocs(detector, detector.scoring, validation, ["tempered-entropy", "kernel-confidence"])
    for kind, outliers in made_up_outliers(validation.inputs).items():
        truth = np.repeat([0, 1], [len(validation), len(outliers)])
        for name in table:
            scores = np.concatenate([detector.score(validation.inputs, name), detector.score(outliers, name)])
            assert table[name][kind] == pytest.approx(roc_auc_score(truth, scores), abs=1e-4)


def test_all_scores_are_those_one_by_one(detector, fitted):
    fit_scoring(detector, ScoreConfig(name="combined", neighbour=3), fitted.parts.training, fitted.parts.validation)
    inputs = fitted.parts.calibration.inputs
    found = all_scores(detector, detector.scoring, inputs)
    assert list(found) == detector.scoring.names
    for name, scores in found.items():
        np.testing.assert_allclose(scores, detector.score(inputs, name), rtol=1e-4, atol=1e-5)
    assert all(len(scores) == 0 for scores in all_scores(detector, detector.scoring, inputs[:0]).values())


@pytest.mark.parametrize("rows", [None, 1])
def test_auto_without_enough_validation_is_the_methods_own(rows, detector, fitted):
    validation = None if rows is None else fitted.parts.validation.subset(range(rows))
    fit_scoring(detector, ScoreConfig(), fitted.parts.training, validation)
    assert detector.scoring.name == "tempered-entropy"
    assert "score_choice" not in detector.provenance


def test_a_density_needs_no_validation(detector, fitted):
    fit_scoring(detector, ScoreConfig(name="class-gaussian"), fitted.parts.training, None)
    assert detector.scoring.name == "class-gaussian"


def test_names_are_checked(detector, fitted):
    with pytest.raises(InputError, match=r"score.name='bogus' is unknown for be-snn"):
        fit_scoring(detector, ScoreConfig(name="bogus"), fitted.parts.training, fitted.parts.validation)
    with pytest.raises(InputError, match="needs validation data"):
        fit_scoring(detector, ScoreConfig(name="combined"), fitted.parts.training, None)


def test_of_several_layers_each_exists(detector, fitted):
    with pytest.raises(InputError, match=r"no layer 'attic': its layers are trunk, trunk\.0, "):
        fit_scoring(detector, ScoreConfig(layer="trunk+attic"), fitted.parts.training, fitted.parts.validation)


def test_layers_are_checked_before_training(tiny_recipe, moons):
    class NeverStarted(Silent):
        def start(self, done, total):
            raise AssertionError("training has begun")

    with pytest.raises(InputError, match=r"no layer 'trunk': its layers are "):
        fit_detector(tiny_recipe("score.layer=trunk+head"), moons, reporter=NeverStarted())


def test_a_score_that_tells_nothing_apart_is_not_combined():
    moons = two_moons(60)
    model = SoftmaxClassifier(mlp(2, (8,), 4), num_classes=2, feature_dim=4)
    torch.nn.init.zeros_(model.head.weight)  # all inputs have the same logits
    torch.nn.init.zeros_(model.head.bias)
    detector = Detector(model, Preprocessing.fit(torch.from_numpy(moons.inputs)), moons.class_names)
    validation = dataclasses.replace(moons, inputs=moons.inputs + 0.01)
    fit_scoring(detector, ScoreConfig(neighbour=3), moons, validation)
    assert detector.scoring.name == "nearest-neighbour"
    assert "combined" not in detector.provenance["score_choice"]
    with pytest.raises(InputError, match=r"combined' cannot be had: predictive-entropy or a density is the same"):
        fit_scoring(detector, ScoreConfig(name="combined", neighbour=3), moons, validation)
