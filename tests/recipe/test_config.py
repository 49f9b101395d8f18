import pytest
import torch

from besnn.recipe import METHODS
from besnn.recipe.config import Recipe
from besnn.training import build_method


@pytest.mark.parametrize(
    ("settings", "inputs"),
    [
        (["training.batch_rows=512", "method.members=1"], 512),
        (["training.batch_rows=512", "method.members=4"], 128),
        (["training.batch_rows=512", "method.members=16"], 32),
        (["training.batch_rows=2", "method.members=8"], 1),
        (["training.batch_size=20", "method.members=8"], 20),
        *((["training.batch_rows=512", f"method={method}"], 512) for method in ("softmax", "duq", "gaussian")),
    ],
    ids=str,
)
def test_rows_are_members_times_inputs(settings, inputs, tiny_recipe):
    assert tiny_recipe(*settings).batch_size == inputs


@pytest.mark.parametrize("method", ["be-snn", "batch-ensemble"])
@pytest.mark.parametrize(("members", "inputs"), [(1, 512), (2, 512), (3, 510), (7, 511), (512, 512)])
def test_members_with_own_inputs_fill_the_rows_together(method, members, inputs, tiny_recipe):
    settings = f"method={{name: {method}, members: {members}, own_inputs: true}}"
    recipe = tiny_recipe(settings, "training.batch_rows=512")
    assert (recipe.batch_size, recipe.shares) == (inputs, members)
    _, objective = build_method(recipe, (2,), 2)
    assert objective.own_inputs


@pytest.mark.parametrize(("size", "inputs"), [(20, 16), (16, 16), (8, 8), (7, 8), (1, 8)])
def test_a_batch_that_members_share_is_rounded_down_to_a_multiple_but_never_to_zero(size, inputs, tiny_recipe):
    for setting in ("batch_size", "batch_rows"):
        recipe = tiny_recipe("method.members=8", "method.own_inputs=true", f"training.{setting}={size}")
        assert recipe.batch_size == inputs


@pytest.mark.parametrize("method", METHODS)
def test_a_batch_that_all_members_see_is_not_shared_out(method, tiny_recipe):
    assert tiny_recipe(f"method={method}").shares == 1


ENSEMBLES = ["be-snn", "deep-ensemble", "batch-ensemble"]


@pytest.mark.parametrize("method", ENSEMBLES)
def test_members_look_at_mirror_images_where_the_recipe_says_so(method, tiny_recipe):
    for settings, mirror in (("", False), (", mirror: false", False), (", mirror: true", True)):
        recipe = tiny_recipe(f"method={{name: {method}{settings}}}", "training.augment.flip=true")
        assert build_method(recipe, (1, 8, 8), 2)[0].mirror == mirror


def test_the_plain_network_of_a_mirrored_recipe_needs_no_flips(tiny_recipe):
    given = "method.mirror=true", "training.augment.flip=true"
    assert not tiny_recipe(*given, "pretraining={epochs: 1}").plain().method.mirror


@pytest.mark.parametrize("method", METHODS)
def test_the_terms_a_method_names_are_those_of_its_objective(method, tiny_recipe, moons):
    recipe: Recipe = tiny_recipe(f"method={method}")
    model, objective = build_method(recipe, (2,), 2)
    terms = objective(model, torch.from_numpy(moons.inputs[:32]), torch.from_numpy(moons.labels[:32]))
    assert tuple(terms) == recipe.method.terms


@pytest.mark.parametrize("name", METHODS)
def test_methods_are_registered_under_their_names(name):
    assert METHODS[name]().name == name
    with pytest.raises(ValueError, match=name):
        METHODS[name](name="bogus")
