"""Other methods in the place of a recipe's own."""

import pytest
import torch

from besnn.evaluation.paper import TABLE_2
from besnn.experiments.baselines import method_overrides
from besnn.training import Recipe, build_method, load_recipe, parse_recipe, shipped_recipes

METHODS = ("be-snn", "softmax", "duq", "gaussian", "deep-ensemble", "batch-ensemble")
SHAPES = {"fashion-mnist": (1, 28, 28), "cifar10": (3, 32, 32), "two-moons": (2,), "digits": (1, 8, 8)}


def recipe_of(name: str, method: str) -> Recipe:
    return load_recipe(name, method_overrides(load_recipe(name), method))


@pytest.mark.parametrize("cost", [cost for cost in TABLE_2 if cost.method != "be-snn"], ids=lambda cost: cost.method)
def test_the_networks_of_baselines_have_the_papers_sizes(cost) -> None:
    model, _ = build_method(recipe_of("fashion-mnist", cost.method), SHAPES["fashion-mnist"], 10)
    assert sum(parameter.numel() for parameter in model.parameters()) == cost.parameters


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", SHAPES)
def test_every_method_takes_every_recipe(name: str, method: str) -> None:
    recipe = recipe_of(name, method)
    with torch.device("meta"):
        model, _ = build_method(recipe, SHAPES[name], 10)
    assert model.method == recipe.method.name == method
    assert recipe.data == load_recipe(name).data


@pytest.mark.parametrize("name", shipped_recipes())
def test_a_recipes_own_method_needs_nothing(name: str) -> None:
    assert method_overrides(load_recipe(name), "be-snn") == []


@pytest.mark.parametrize("method", METHODS[1:])
def test_tuning_our_recipe_moves_no_baseline(method: str) -> None:
    tuned = ["training.epochs=99", "training.optimiser.learning_rate=0.5", "training.ramps.entropy.start=0.5"]
    before = recipe_of("fashion-mnist", method)
    after = load_recipe("fashion-mnist", [*tuned, *method_overrides(load_recipe("fashion-mnist", tuned), method)])
    assert after == before


def test_a_namesake_of_the_users_own_keeps_its_sections() -> None:
    content = {"name": "cifar10", "data": {"source": "photos"}, "backbone": {"hidden": [7]}, "training": {"gradient_every": 4}}
    recipe = parse_recipe(content)
    changed = parse_recipe(content, method_overrides(recipe, "softmax"))
    assert changed.backbone == recipe.backbone
    assert (changed.method.name, changed.training.gradient_every, changed.training.augment.crop) == ("softmax", 1, 0)


def test_a_score_that_the_method_lacks_gives_way_to_its_own() -> None:
    recipe = load_recipe("digits", ["score.name=tempered-entropy"])
    assert load_recipe("digits", method_overrides(recipe, "softmax")).score.name == "method"
    assert load_recipe("digits", ["score.name=auto", *method_overrides(load_recipe("digits"), "softmax")]).score.name == "auto"
