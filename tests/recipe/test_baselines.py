"""Overrides that replace a recipe's method."""

import pytest
import torch

from besnn.recipe import METHODS
from besnn.recipe.reading import method_overrides
from besnn.training import Recipe, build_method, load_recipe, parse_recipe, shipped_recipes
from experiments.paper import TABLE_2
from experiments.runs import reproduction_recipe

BASELINES = [name for name in METHODS if name != "be-snn"]
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
def test_a_recipes_own_method_needs_no_overrides(name: str) -> None:
    assert method_overrides(load_recipe(name), "be-snn") == []


@pytest.mark.parametrize("method", BASELINES)
def test_tuning_our_recipe_changes_no_baseline(method: str) -> None:
    tuned = ["training.epochs=99", "training.optimiser.learning_rate=0.5", "training.ramps.entropy.start=0.5"]
    before = recipe_of("fashion-mnist", method)
    after = load_recipe("fashion-mnist", [*tuned, *method_overrides(load_recipe("fashion-mnist", tuned), method)])
    assert after == before


def test_a_users_recipe_of_the_same_name_keeps_its_sections() -> None:
    content = {"name": "cifar10", "data": {"source": "photos"}, "backbone": {"hidden": [7]}, "training": {"gradient_every": 4}}
    recipe = parse_recipe(content)
    changed = parse_recipe(content, method_overrides(recipe, "softmax"))
    assert changed.backbone == recipe.backbone
    assert (changed.method.name, changed.training.gradient_every, changed.training.augment.crop) == ("softmax", 1, 0)


def test_a_score_that_the_method_lacks_gives_way_to_its_own() -> None:
    recipe = load_recipe("digits", ["score.name=tempered-entropy"])
    assert load_recipe("digits", method_overrides(recipe, "softmax")).score.name == "method"
    assert load_recipe("digits", ["score.name=auto", *method_overrides(load_recipe("digits"), "softmax")]).score.name == "auto"


@pytest.mark.parametrize("seed", [0, 2])
def test_cifar10s_methods_start_from_one_plain_network_per_seed(seed: int) -> None:
    """What shares the plain recipe, data and seed shares the network; the others are such networks themselves."""
    recipes = {method: reproduction_recipe("cifar10", method, seed, ["data.validation=0.02"]) for method in METHODS}
    pretrained = {method for method, recipe in recipes.items() if recipe.pretraining is not None}
    assert pretrained == set(METHODS) - {"softmax", "deep-ensemble"}
    ours = recipes["be-snn"].plain()
    assert ours.training.seed == seed
    assert all(recipes[method].plain() == ours for method in pretrained)
    longer = {"epochs": recipes["softmax"].training.epochs}
    for method in set(METHODS) - pretrained:  # the same settings, for as many epochs as the others have in all
        assert recipes[method].training == ours.training.model_copy(update=longer)
        assert recipes[method].backbone == ours.backbone


def test_cifar10s_methods_go_through_the_data_equally_often() -> None:
    def epochs(recipe: Recipe) -> int:
        return recipe.training.epochs + (recipe.pretraining.epochs if recipe.pretraining else 0)

    assert len({epochs(recipe_of("cifar10", method)) for method in METHODS}) == 1


def test_in_other_recipes_another_method_has_no_pretraining() -> None:
    """A plain network's settings were chosen for the recipe's own method; a deep ensemble could not have it at all."""
    content = {"name": "mine", "data": {"source": "photos"}, "pretraining": {"epochs": 3}}
    recipe = parse_recipe(content)
    for method in BASELINES:
        assert parse_recipe(content, method_overrides(recipe, method)).pretraining is None
    assert parse_recipe(content, method_overrides(recipe, "be-snn")).pretraining == recipe.pretraining
    assert not any(word.startswith("pretraining") for word in method_overrides(load_recipe("digits"), "duq"))
