"""Going on from a trained detector: what it knew stays, new classes are added, and what does not fit is refused."""

import numpy as np
import pytest
import torch

from besnn.data import Dataset
from besnn.errors import InputError
from besnn.recipe import METHODS
from besnn.recipe.build import build_method
from besnn.training.fit import fit_detector
from besnn.training.start import continue_from, recipe_to_go_on, with_old_classes_first

NEW = np.random.default_rng(0).normal(size=(20, 2)).astype(np.float32)


@pytest.mark.parametrize("method", METHODS)
def test_the_old_classes_keep_their_evidence(method, tiny_recipe, moons):
    settings = [] if method == "be-snn" else [f"method={method}"]
    start = fit_detector(tiny_recipe(*settings), moons).detector
    torch.manual_seed(0)
    model, _ = build_method(start.recipe, (2,), num_classes=4)
    continue_from(model, start)
    model.eval()
    model.freeze_classes()
    x = start.preprocessing(torch.from_numpy(NEW))
    with torch.no_grad():
        old, new = start.model(x), model(x)
    torch.testing.assert_close(new[..., :2], old, rtol=1e-4, atol=1e-4)
    assert new.shape[-1] == 4


def with_a_third_class(moons: Dataset) -> Dataset:
    third = np.random.default_rng(1).normal((8, 8), 0.2, (80, 2)).astype(np.float32)
    inputs, labels = np.concatenate([moons.inputs, third]), np.concatenate([1 - moons.labels, np.full(80, 2)])
    return Dataset(inputs, labels, (*moons.class_names[::-1], "third"), "three", feature_names=moons.feature_names)


def test_training_goes_on_with_the_old_classes_first(tiny_recipe, moons):
    start = fit_detector(tiny_recipe("training.epochs=8"), moons).detector
    recipe = recipe_to_go_on(start, "three")
    assert (recipe.training.epochs, recipe.data.source) == (2, "three")
    assert recipe.training.optimiser.learning_rate == pytest.approx(0.3 * start.recipe.training.optimiser.learning_rate)
    three = with_a_third_class(moons)
    detector = fit_detector(recipe, three, start=start).detector
    assert detector.class_names == (*moons.class_names, "third")
    truth = np.asarray(three.class_names)[three.labels]
    right = detector.predict(three.inputs).labels == truth
    assert right[truth == "third"].mean() > 0.9
    before = (start.predict(moons.inputs).indices == moons.labels).mean()
    assert right[truth != "third"].mean() > before - 0.05
    assert torch.equal(detector.preprocessing.mean, start.preprocessing.mean)


def test_rows_of_a_new_class_are_drawn_as_often_as_those_of_an_old_one(tiny_recipe, moons):
    start = fit_detector(tiny_recipe(), moons).detector
    three = with_old_classes_first(with_a_third_class(moons).subset(np.arange(len(moons) + 10)), start)
    drawn = np.bincount(three.labels, three.weights)
    assert np.bincount(three.labels)[2] == 10
    assert drawn[2] == pytest.approx(drawn[:2].mean())
    assert (three.weights[three.labels < 2] == 1).all()
    assert with_old_classes_first(moons, start).weights is None


def test_a_start_that_does_not_fit_is_refused(tiny_recipe, moons):
    start = fit_detector(tiny_recipe(), moons).detector
    wider, _ = build_method(tiny_recipe("backbone.feature_dim=12"), (2,), 3)
    with pytest.raises(InputError, match="the model to start from does not fit"):
        continue_from(wider, start)
    start.recipe = None
    with pytest.raises(InputError, match="has no recipe"):
        recipe_to_go_on(start, "three")
