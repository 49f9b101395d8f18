import dataclasses

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

from besnn.baselines import SoftmaxClassifier
from besnn.data import Dataset, made_up_outliers, two_moons
from besnn.detection import DENSITIES, ScoreSet
from besnn.detection.combined import TailProbability
from besnn.detector import Detector
from besnn.errors import InputError
from besnn.layers import tile
from besnn.model import Preprocessing, mlp
from besnn.model.feature_layers import layer_groups
from besnn.recipe.config import ScoreConfig
from besnn.recipe.reading import load_recipe
from besnn.training.choose_score import combine, fit_densities, fit_scoring, made_up_aurocs
from besnn.training.fit import fit_detector

APART = "trunk.3,trunk.3+trunk,trunk"


@pytest.fixture(scope="module")
def fitted(tiny_recipe, stripes):
    recipe = tiny_recipe("backbone.hidden=[4, 4]", "data.calibration=0.35", "training.epochs=2", "score.name=method")
    return fit_detector(recipe, stripes)


@pytest.fixture
def detector(fitted):
    """Trained, with nothing but its method's own score."""
    trained = fitted.detector
    return Detector(trained.model, trained.preprocessing, trained.class_names, trained.recipe)


def test_photos_are_scored_by_their_pixels_with_and_without_the_output(detector, fitted):
    fit_scoring(detector, load_recipe("images").score, fitted.split.training, fitted.split.validation)
    parts = ["class-covariance at pixels+output", "class-gaussian at pixels", "tempered-entropy"]
    assert (detector.scoring.name, list(detector.scoring.combined.tails)) == ("combined", parts)
    assert detector.scoring.combined.far == pytest.approx({parts[1]: np.log(6)})
    own, pixels = (training_features(detector, fitted, layer) for layer in ("output", "pixels"))
    joined = torch.cat([torch.nn.functional.normalize(each, dim=-1) for each in (pixels, own)], dim=-1)
    expected = DENSITIES["class-covariance"]().fit(joined, torch.from_numpy(fitted.split.training.labels)).score(joined)
    np.testing.assert_allclose(detector.score(fitted.split.training.inputs, parts[0]), expected, rtol=1e-3, atol=1e-3)


@pytest.fixture(scope="module")
def layer_by_layer(fitted):
    """Fits one kind of density at each layer of `APART` by itself; gives a function from inputs to `{name: scores}`."""

    def fit(kind, **settings):
        alone = {}
        for layer in APART.split(","):
            trained = fitted.detector
            detector = Detector(trained.model, trained.preprocessing, trained.class_names, trained.recipe)
            config = ScoreConfig(name=kind, layer=layer, neighbour=3, **settings)
            fit_scoring(detector, config, fitted.split.training, None)
            alone[f"{kind} at {layer}"] = detector
        return lambda inputs: {name: detector.score(inputs) for name, detector in alone.items()}

    return fit


def training_features(detector, fitted, layer):
    return torch.cat([features for _, features in detector.outputs(fitted.split.training.inputs, layer)], dim=1)


@pytest.mark.parametrize("layer", ["trunk", None, "attic"])
def test_densities_use_training_features_of_the_layer(layer, detector, fitted):
    config = ScoreConfig(name="nearest-neighbour", neighbour=3, layer=layer)
    fit_scoring(detector, config, fitted.split.training, fitted.split.validation)
    assert detector.layer == ("trunk" if layer == "trunk" else None)
    features = training_features(detector, fitted, detector.layer)
    validation = fitted.split.validation.inputs
    queries = torch.cat([features for _, features in detector.outputs(validation, detector.layer)], dim=1)
    cosine = torch.nn.functional.normalize(queries, dim=-1) @ torch.nn.functional.normalize(features, dim=-1).mT
    third = (1 - cosine).kthvalue(3, dim=-1).values.mean(dim=0)
    np.testing.assert_allclose(detector.score(validation), third, atol=0.02)  # features are stored in 8 bits
    assert list(detector.scoring.densities) == ["nearest-neighbour"]


def test_densities_of_the_inputs_see_what_goes_into_the_network(detector, fitted):
    config = ScoreConfig(name="class-gaussian", layer="inputs")
    fit_scoring(detector, config, fitted.split.training, None)
    training, validation = (
        detector.preprocessing(torch.from_numpy(part.inputs)).flatten(1)[None]
        for part in (fitted.split.training, fitted.split.validation)
    )
    expected = DENSITIES["class-gaussian"]().fit(training, torch.from_numpy(fitted.split.training.labels)).score(validation)
    np.testing.assert_allclose(detector.score(fitted.split.validation.inputs), expected, rtol=1e-5)


def test_few_rows_are_cross_fitted(detector, fitted):
    """Densities of the inputs use validation rows too; each row is referred to by a density that was fitted without it."""
    config = ScoreConfig(name="combined", layer="inputs", densities=("class-gaussian",))
    training, validation = fitted.split.training, fitted.split.validation
    fit_scoring(detector, config, training, validation)
    rows = np.concatenate([training.inputs, validation.inputs])
    labels = np.concatenate([training.labels, validation.labels])
    x, y = detector.preprocessing(torch.from_numpy(rows)).flatten(1), torch.from_numpy(labels)
    whole = DENSITIES["class-gaussian"]().fit(x[None], y)
    np.testing.assert_allclose(detector.score(rows, "class-gaussian"), whole.score(x[None]), rtol=1e-4)
    fold = np.empty(len(rows), int)
    for label in np.unique(labels):  # dealt out in turn, class after class
        fold[labels == label] = (np.arange((labels == label).sum()) + (labels < label).sum()) % 5
    expected = np.empty(len(rows))
    for each in range(5):
        others = torch.from_numpy(fold != each)
        density = DENSITIES["class-gaussian"]().fit(x[None, others], y[others])
        expected[fold == each] = density.score(x[None, ~others])
    reference = detector.scoring.combined.state()
    np.testing.assert_allclose(reference["class-gaussian"], np.sort(expected), rtol=1e-4)
    assert len(reference["tempered-entropy"]) == len(validation)


def test_some_scores_beside_those_of_the_inputs_only_count_where_they_are_unusual(detector, fitted):
    kinds = "class-covariance", "whitened-neighbour"
    config = ScoreConfig(name="combined", layer="inputs", far="method", densities=kinds, neighbour=3)
    fit_scoring(detector, config, fitted.split.training, fitted.split.validation)
    assert detector.scoring.combined.far == pytest.approx({"tempered-entropy": np.log(20), "whitened-neighbour": np.log(50)})


def test_inputs_stand_alone():
    with pytest.raises(InputError, match="name inputs alone"):
        layer_groups("inputs,trunk")


@pytest.mark.parametrize("layer", ["trunk.3+trunk", "trunk+trunk.3"])
def test_several_layers_are_used_together(layer, detector, fitted):
    config = ScoreConfig(name="nearest-neighbour", neighbour=3, layer=layer)
    fit_scoring(detector, config, fitted.split.training, None)
    assert detector.layer == layer
    model, distances = detector.model.extractors()[0], []
    x, stored = (
        detector.preprocessing(torch.from_numpy(part.inputs)) for part in (fitted.split.validation, fitted.split.training)
    )
    for depth in (4, None):
        with torch.no_grad():
            each = [model.trunk[:depth](tile(part, 2)).flatten(1).unflatten(0, (2, -1)) for part in (x, stored)]
        unit = [torch.nn.functional.normalize(features.double(), dim=-1) for features in each]
        distances.append(1 - unit[0] @ unit[1].mT)
    third = torch.stack(distances).mean(0).kthvalue(3, dim=-1).values.mean(dim=0)  # 1 − the mean of the layers' cosines
    np.testing.assert_allclose(detector.score(fitted.split.validation.inputs), third, atol=0.02)  # stored in 8 bits


@pytest.mark.parametrize("densities", [["nearest-neighbour"], ["nearest-neighbour", "class-gaussian"]])
def test_the_number_of_stored_rows_is_limited(densities, detector, fitted):
    config = ScoreConfig(name="combined", neighbour=50, stored_rows=7, densities=densities)
    fit_scoring(detector, config, fitted.split.training, fitted.split.validation)
    tensors, _ = detector.scoring.state()
    assert tensors["density/nearest-neighbour/codes"].shape[1] == 7
    assert tensors["density/nearest-neighbour/k"] == 7  # no neighbour is farther than the last
    stored = tensors["density/nearest-neighbour/codes"].float() * tensors["density/nearest-neighbour/scale"]
    features = torch.nn.functional.normalize(training_features(detector, fitted, detector.layer), dim=-1)
    nearest = torch.cdist(stored, features).amin(dim=-1)
    assert nearest.max() < 0.05  # every stored row is one of training's


def test_the_combination_refers_to_validation_rows(detector, fitted):
    config = ScoreConfig(name="combined", neighbour=3, densities=("class-gaussian", "nearest-neighbour"))
    fit_scoring(detector, config, fitted.split.training, fitted.split.validation)
    reference = detector.scoring.combined.state()
    assert set(reference) == {"tempered-entropy", "class-gaussian", "nearest-neighbour"}
    for name, scores in reference.items():
        assert np.array_equal(scores.numpy(), np.sort(detector.score(fitted.split.validation.inputs, name)))


def test_auto_combines_and_records_figures_on_made_up_outliers(detector, fitted):
    fit_scoring(detector, ScoreConfig(neighbour=3), fitted.split.training, fitted.split.validation)
    table = detector.provenance["score_choice"]
    assert list(table) == ["tempered-entropy", "nearest-neighbour", "combined"]
    kinds = set(made_up_outliers(fitted.split.validation.inputs))
    assert all(set(row) == kinds for row in table.values())
    assert detector.scoring.name == "combined"


def test_the_table_against_scikit_learn(detector, fitted):
    validation = fitted.split.validation
    table = made_up_aurocs(detector, validation, ["tempered-entropy", "kernel-confidence"])
    for kind, outliers in made_up_outliers(validation.inputs).items():
        truth = np.repeat([0, 1], [len(validation), len(outliers)])
        for name in table:
            scores = np.concatenate([detector.score(validation.inputs, name), detector.score(outliers, name)])
            assert table[name][kind] == pytest.approx(roc_auc_score(truth, scores), abs=1e-4)


def test_all_scores_are_those_one_by_one(detector, fitted):
    fit_scoring(detector, ScoreConfig(name="combined", neighbour=3), fitted.split.training, fitted.split.validation)
    inputs = fitted.split.calibration.inputs
    found = detector.scores(inputs)
    assert list(found) == detector.scoring.names
    for name, scores in found.items():
        np.testing.assert_allclose(scores, detector.score(inputs, name), rtol=1e-4, atol=1e-5)
    assert all(len(scores) == 0 for scores in detector.scores(inputs[:0]).values())


@pytest.mark.parametrize("rows", [None, 1])
def test_auto_without_enough_validation_is_the_methods_own(rows, detector, fitted):
    validation = None if rows is None else fitted.split.validation.subset(range(rows))
    fit_scoring(detector, ScoreConfig(), fitted.split.training, validation)
    assert detector.scoring.name == "tempered-entropy"
    assert "score_choice" not in detector.provenance


def test_a_density_needs_no_validation(detector, fitted):
    fit_scoring(detector, ScoreConfig(name="class-gaussian"), fitted.split.training, None)
    assert detector.scoring.name == "class-gaussian"


def test_layers_are_checked_before_training(tiny_recipe, moons, never_started):
    with pytest.raises(InputError, match=r"no layer 'trunk': its layers are "):
        fit_detector(tiny_recipe("score.layer=trunk+head"), moons, reporter=never_started)


@pytest.mark.parametrize(
    ("kinds", "stored_rows"),
    [(["nearest-neighbour"], 7), (["nearest-neighbour"], 10_000), (["class-gaussian", "nearest-neighbour"], 10_000)],
)
def test_one_pass_fits_what_each_layer_alone_would_have(kinds, stored_rows, detector, fitted, layer_by_layer):
    config = ScoreConfig(name="combined", layer=APART, neighbour=3, stored_rows=stored_rows)
    densities = fit_densities(detector, config, kinds, fitted.split.training)
    assert list(densities) == [f"{kind} at {layer}" for layer in APART.split(",") for kind in kinds]
    assert detector.layer == APART
    inputs = fitted.split.calibration.inputs
    detector.scoring = ScoreSet("distances", "tempered-entropy", densities)
    found = detector.scores(inputs, list(densities))
    for kind in kinds:
        for name, expected in layer_by_layer(kind, stored_rows=stored_rows)(inputs).items():
            np.testing.assert_allclose(found[name], expected, rtol=1e-4, atol=1e-5)
            assert np.ptp(expected) > 0


def test_the_combination_adds_up_the_surprise_at_every_layer(detector, fitted, layer_by_layer):
    config = ScoreConfig(name="combined", layer=APART, neighbour=3)
    fit_scoring(detector, config, fitted.split.training, fitted.split.validation)
    assert detector.scoring.names[-4:] == [*(f"nearest-neighbour at {layer}" for layer in APART.split(",")), "combined"]
    strange = made_up_outliers(fitted.split.calibration.inputs)["mosaics"]
    inputs = np.concatenate([fitted.split.calibration.inputs, strange])
    alone = layer_by_layer("nearest-neighbour")
    reference, single = (
        {"tempered-entropy": detector.score(rows, "tempered-entropy"), **alone(rows)}
        for rows in (fitted.split.validation.inputs, inputs)
    )
    expected = sum(
        TailProbability(torch.from_numpy(reference[name])).surprise(torch.from_numpy(single[name])) for name in single
    )
    np.testing.assert_allclose(detector.score(inputs), expected, rtol=1e-3, atol=1e-3)
    assert len(single) == 4
    assert np.ptp(expected.numpy()) > 1


def test_auto_combines_the_densities_of_every_layer(detector, fitted):
    kinds = ("class-gaussian", "nearest-neighbour")
    config = ScoreConfig(layer=APART, neighbour=3, densities=kinds)
    fit_scoring(detector, config, fitted.split.training, fitted.split.validation)
    table = detector.provenance["score_choice"]
    of_layers = [f"{kind} at {layer}" for layer in APART.split(",") for kind in kinds]
    assert list(table) == ["tempered-entropy", *of_layers, "combined"]
    assert detector.scoring.name == "combined"
    made_up = {kind: detector.score(rows) for kind, rows in made_up_outliers(fitted.split.validation.inputs).items()}
    known = detector.score(fitted.split.validation.inputs)
    for kind, strange in made_up.items():
        auroc = roc_auc_score(np.repeat([0, 1], [len(known), len(strange)]), np.concatenate([known, strange]))
        assert table[detector.scoring.name][kind] == pytest.approx(auroc, abs=0.01)


@pytest.mark.parametrize("name", DENSITIES)
def test_a_density_of_layers_apart_is_refused_before_training(name, tiny_recipe, stripes, never_started):
    recipe = tiny_recipe("backbone.hidden=[4, 4]", f"score.layer={APART}", f"score.name={name}", "data.calibration=0.35")
    with pytest.raises(InputError) as refused:
        fit_detector(recipe, stripes, reporter=never_started)
    message = str(refused.value)
    assert "\n" not in message
    assert all(part in message for part in (repr(name), APART, "join them with +", "set score.name to combined"))


@pytest.mark.parametrize("layer", ["trunk+attic", "trunk,attic", "attic,trunk", "trunk.3+attic,trunk"])
def test_of_several_layers_each_exists(layer, detector, fitted):
    with pytest.raises(InputError, match=r"^the network has no layer 'attic': its layers are trunk, [^\n]*$"):
        fit_scoring(detector, ScoreConfig(name="combined", layer=layer), fitted.split.training, fitted.split.validation)


def test_the_methods_own_score_needs_no_layers(detector, fitted):
    before = detector.score(fitted.split.calibration.inputs)
    fit_scoring(detector, ScoreConfig(name="method", layer=APART), fitted.split.training, None)
    assert np.array_equal(detector.score(fitted.split.calibration.inputs), before)


@pytest.mark.parametrize("name", ["combined", "auto"])
def test_a_saved_detector_of_layers_apart_scores_the_same(name, detector, fitted, tmp_path):
    config = ScoreConfig(name=name, layer=APART, neighbour=3)
    fit_scoring(detector, config, fitted.split.training, fitted.split.validation)
    detector.save(tmp_path / "model.safetensors")
    loaded = Detector.load(tmp_path / "model.safetensors")
    assert (loaded.layer, loaded.scoring.name) == (detector.layer, detector.scoring.name)
    assert loaded.scoring.names == detector.scoring.names
    for score in detector.scoring.names:
        inputs = fitted.split.calibration.inputs
        assert np.array_equal(loaded.score(inputs, score), detector.score(inputs, score)), score


def test_a_constant_layer_is_not_combined():
    moons = two_moons(60)
    model = SoftmaxClassifier(mlp((2,), (1,), 4), num_classes=2, feature_dim=4)
    torch.nn.init.constant_(model.feature_extractor[0].bias, 100)  # so that layer 1 is a positive number: always one direction
    detector = Detector(model, Preprocessing.fit(torch.from_numpy(moons.inputs)), moons.class_names)
    validation = dataclasses.replace(moons, inputs=moons.inputs + 0.01)
    for layer, told_apart in (("1,2", ["2"]), ("2,1", ["2"]), ("2,2+0", ["2", "2+0"])):
        densities = fit_densities(detector, ScoreConfig(layer=layer, neighbour=3), ["nearest-neighbour"], moons)
        detector.scoring = ScoreSet("logits", "predictive-entropy", densities)
        combined = combine(detector, validation)
        assert list(combined.tails) == [*(f"nearest-neighbour at {each}" for each in told_apart), "predictive-entropy"]


def test_a_constant_score_is_not_combined():
    moons = two_moons(60)
    model = SoftmaxClassifier(mlp((2,), (8,), 4), num_classes=2, feature_dim=4)
    torch.nn.init.zeros_(model.head.weight)  # all inputs have the same logits
    torch.nn.init.zeros_(model.head.bias)
    detector = Detector(model, Preprocessing.fit(torch.from_numpy(moons.inputs)), moons.class_names)
    validation = dataclasses.replace(moons, inputs=moons.inputs + 0.01)
    fit_scoring(detector, ScoreConfig(neighbour=3), moons, validation)
    assert (detector.scoring.name, list(detector.scoring.combined.tails)) == ("combined", ["nearest-neighbour"])
    torch.nn.init.zeros_(model.feature_extractor[2].weight)  # and now the same features
    detector.forget_networks()
    with pytest.raises(InputError, match=r"combined' is not possible: predictive-entropy and all densities are the same"):
        fit_scoring(detector, ScoreConfig(name="combined", neighbour=3), moons, validation)


FAR = "pixels,trunk.3"
DISTANT = {"class-gaussian at pixels": np.log(6), "nearest-neighbour at trunk.3": np.log(20), "tempered-entropy": np.log(20)}


@pytest.fixture
def far(detector, fitted):
    """Fitted with a density at the trunk, and two that only tell what is far away, as does the method's own score."""
    config = ScoreConfig(neighbour=3, far=f"{FAR},attic,method")  # the network has no attic
    fit_scoring(detector, config, fitted.split.training, fitted.split.validation)
    return detector


def test_far_densities_join_the_combination(far, fitted):
    assert far.layer == f"trunk,{FAR}"
    assert list(far.scoring.densities) == ["nearest-neighbour at trunk", *list(DISTANT)[:2]]
    assert far.scoring.combined.tails.keys() == {"nearest-neighbour at trunk", *DISTANT}
    assert far.scoring.name == "combined"
    validation, inputs = fitted.split.validation.inputs, fitted.split.calibration.inputs
    expected = np.zeros(len(inputs))
    for name in far.scoring.combined.tails:
        surprise = TailProbability(torch.from_numpy(far.score(validation, name))).surprise(
            torch.from_numpy(far.score(inputs, name))
        )
        expected += 2 * np.maximum(surprise.numpy() - DISTANT[name], 0) if name in DISTANT else surprise.numpy()
    np.testing.assert_allclose(far.score(inputs), expected, rtol=1e-4, atol=1e-5)


def test_what_is_glaringly_different_is_told_by_its_pixels(far, fitted):
    known, flat = fitted.split.calibration.inputs, np.full((10, 1, 8, 8), 128, np.uint8)
    assert far.score(flat).min() > far.score(known).max()


def test_a_saved_detector_with_far_densities_scores_the_same(far, fitted, tmp_path):
    far.save(tmp_path / "model.safetensors")
    inputs = np.concatenate([fitted.split.calibration.inputs, np.full((2, 1, 8, 8), 128, np.uint8)])
    assert np.array_equal(Detector.load(tmp_path / "model.safetensors").score(inputs), far.score(inputs))


def test_a_network_without_the_named_layer_uses_its_output_beside_the_pixels(detector, fitted):
    config = ScoreConfig(neighbour=3, layer="attic", far="pixels")
    fit_scoring(detector, config, fitted.split.training, fitted.split.validation)
    assert list(detector.scoring.densities) == ["nearest-neighbour at output", "class-gaussian at pixels"]
    name = "nearest-neighbour at output"
    beside = detector.score(fitted.split.calibration.inputs, name)
    fit_scoring(detector, ScoreConfig(name="nearest-neighbour", neighbour=3, layer=None), fitted.split.training, None)
    np.testing.assert_allclose(detector.score(fitted.split.calibration.inputs), beside, atol=1e-6)


def test_covariances_that_would_not_fit_into_memory_are_refused_before_training(tiny_recipe, monkeypatch):
    """A table of 50,000 columns asked for 20 GB per class, once it was trained."""
    monkeypatch.setattr("besnn.training.choose_score.MOST_COVARIANCE_BYTES", 8 * 20**2)
    monkeypatch.setattr("besnn.training.trainer.Trainer.fit", lambda *_: pytest.fail("trained"))
    wide = Dataset(np.eye(200, 20, dtype=np.float32), np.arange(200) % 2, ("a", "b"), "wide")
    recipe = tiny_recipe("score.layer=inputs", "score.name=combined", "score.densities=[whitened-neighbour,class-covariance]")
    with pytest.raises(InputError, match=r"needs 2 covariances of 20 columns, .* set score\.name=nearest-neighbour"):
        fit_detector(recipe, wide)
    one = tiny_recipe("score.layer=inputs", "score.name=class-gaussian")
    monkeypatch.setattr("besnn.training.choose_score.MOST_COVARIANCE_BYTES", 8 * 20**2 - 1)
    with pytest.raises(InputError, match="a covariance of 20 columns"):
        fit_detector(one, wide)
