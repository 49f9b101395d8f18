import pytest
import torch

from besnn.errors import InputError
from besnn.layers import fast_parameters
from besnn.recipe import METHODS
from besnn.recipe.build import resolve_backbone, with_trunk
from besnn.recipe.config import backbone_class
from besnn.recipe.reading import method_overrides
from besnn.training import Recipe, build_backbone, build_method, load_recipe, parse_recipe, shipped_recipes
from experiments.paper import TABLE_2
from experiments.runs import reproduction_recipe


@pytest.mark.parametrize(("shape", "name"), [((5,), "mlp"), ((1, 8, 8), "convnet")])
def test_auto_is_settled_by_the_input(shape, name):
    assert resolve_backbone(backbone_class()(), shape).name == name
    assert resolve_backbone(backbone_class()(name="mlp"), shape).name == "mlp"


@pytest.mark.parametrize("members", [1, 3])
@pytest.mark.parametrize("method", ["be-snn", "deep-ensemble", "batch-ensemble"])
def test_settings_reach_the_model(method, members, tiny_recipe):
    recipe = tiny_recipe(f"method={{name: {method}, members: {members}}}", "backbone.feature_dim=6")
    model, _ = build_method(recipe, (2,), 5)
    assert (model.method, model.members, model.num_classes) == (method, members, 5)
    assert model.features(torch.rand(4, 2)).shape == (members, 4, 6)


def test_be_snn_settings_reach_model_and_objective(tiny_recipe):
    recipe = tiny_recipe(
        "method={noise_dim: 3, hidden_dim: 5, samples: 9, class_scale: 2.5, length_scale: 3.5, fast_weights: ones, "
        "entropy_weight: 0.25, gradient_weight: 0.75, over_classes: mean, k: 2, estimator: kpn, squared_norm: false, "
        "match_counts: true}"
    )
    model, objective = build_method(recipe, (2,), 2)
    generator = model.generator
    assert (generator.noise_dim, generator.hidden.out_features, generator.class_scale, model.samples) == (3, 5, 2.5, 9)
    assert model.length_scale == 3.5
    assert all(bool((r_or_s == 1).all()) for r_or_s in fast_parameters(model))
    wanted = {name: getattr(recipe.method, name) for name in ("entropy_weight", "gradient_weight", "over_classes", "k")}
    wanted |= {name: getattr(recipe.method, name) for name in ("estimator", "squared_norm", "match_counts")}
    assert {name: getattr(objective, name) for name in wanted} == wanted


def test_duq_and_gaussian_settings_reach_model_and_objective(tiny_recipe):
    model, objective = build_method(
        tiny_recipe("method={name: duq, embedding_dim: 5, length_scale: 0.3, momentum: 0.5, gradient_weight: 0.2}"), (2,), 2
    )
    assert (model.projection.shape[1], model.length_scale, model.momentum, objective.gradient_weight) == (5, 0.3, 0.5, 0.2)
    sizes = {}
    for covariance in ("identity", "diagonal"):
        recipe = tiny_recipe(f"method={{name: gaussian, covariance: {covariance}, margin: 0.4}}")
        model, objective = build_method(recipe, (2,), 2)
        sizes[covariance] = sum(p.numel() for p in model.parameters())
    assert sizes["diagonal"] - sizes["identity"] == 2 * 4  # classes · features
    assert (objective.margin, objective.likelihood_weight) == (0.4, 0.1)


@pytest.mark.parametrize(
    ("name", "shape"), [("convnet", (3, 9, 8)), ("fashion-convnet", (1, 28, 28)), ("cifar-resnet18", (3, 32, 32))]
)
def test_the_trunk_alone_is_taken(name, shape):
    config = backbone_class()(name=name, hidden=(3, 4), widths=(3, 4, 5), width=2, feature_dim=6, head_dim=7)
    other = build_backbone(config, shape)
    other(torch.rand(8, *shape))  # moves the statistics of BatchNorm, which are part of a trunk
    weights = {key: value.clone() for key, value in other.state_dict().items()}
    backbone = with_trunk(config, shape, weights)
    taken, given = backbone.state_dict(), other.state_dict()
    assert all(torch.equal(taken[key], value) for key, value in given.items() if key.startswith("trunk."))
    drawn = [key for key, _ in backbone.head.named_parameters()]
    assert not any(torch.equal(taken[f"head.{key}"], given[f"head.{key}"]) for key in drawn)
    with torch.no_grad():
        next(backbone.trunk.parameters()).zero_()
    assert all(torch.equal(value, weights[key]) for key, value in other.state_dict().items())  # a copy


def test_a_trunk_of_another_shape_is_not_taken():
    wide, narrow = (backbone_class()(name="convnet", hidden=hidden, feature_dim=3) for hidden in ((4, 6), (4, 5)))
    with pytest.raises(RuntimeError, match="size mismatch"):
        with_trunk(narrow, (1, 8, 8), build_backbone(wide, (1, 8, 8)).state_dict())
    with pytest.raises(InputError, match=r"backbone 'mlp' has no trunk to start from: leave out .* and pretraining"):
        with_trunk(backbone_class()(name="mlp"), (2,), {})


BASELINES = [name for name in METHODS if name != "be-snn"]
SHAPES = {"fashion-mnist": (1, 28, 28), "cifar10": (3, 32, 32), "two-moons": (2,), "digits": (1, 8, 8)}
SHAPES["images"] = (3, 32, 32)


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


def test_another_method_trains_as_the_plain_network_would() -> None:
    images, plain = load_recipe("images"), recipe_of("images", "softmax")
    assert plain.pretraining is None
    assert plain.training == images.pretraining
    assert recipe_of("images", "deep-ensemble").training == images.pretraining


def test_more_training_images_get_a_wider_network() -> None:
    backbone = load_recipe("images").backbone
    widths = [resolve_backbone(backbone, (3, 32, 32), images).channels for images in (1_000, 10_000, 100_000)]
    assert widths == sorted(set(widths))
    given = backbone.model_copy(update={"channels": 5})
    assert resolve_backbone(given, (3, 32, 32), 100_000).channels == 5


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
