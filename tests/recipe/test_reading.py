import pydantic
import pytest
import yaml

from besnn.errors import InputError
from besnn.recipe.methods import METHODS
from besnn.recipe.reading import effort_overrides, recipe_text
from besnn.training import load_recipe, parse_recipe, shipped_recipes

MINE = {"name": "mine", "data": {"source": "digits"}}


@pytest.mark.parametrize("name", shipped_recipes())
def test_shipped_recipes_are_valid_and_say_what_they_are_for(name):
    recipe = load_recipe(name)
    assert recipe.name == name
    assert recipe_text(name).startswith("#")


def test_the_papers_experiments_and_plain_data_have_recipes():
    assert {"two-moons", "digits", "fashion-mnist"} <= set(shipped_recipes())


@pytest.mark.parametrize("name", shipped_recipes())
def test_a_recipe_survives_the_way_into_a_file_and_back(name):
    recipe = load_recipe(name)
    assert parse_recipe(recipe.model_dump(mode="json")) == recipe


def test_a_recipe_does_not_change_once_it_is_read():
    recipe = parse_recipe(MINE)
    with pytest.raises(pydantic.ValidationError):
        recipe.training.epochs = 5
    with pytest.raises(pydantic.ValidationError):
        recipe.name = "yours"


@pytest.mark.parametrize(
    ("override", "path", "value"),
    [
        ("training.epochs=5", "training.epochs", 5),
        ("training.optimiser.learning_rate=1e-3", "training.optimiser.learning_rate", 0.001),  # a string to YAML 1.1
        ("training.average_from=null", "training.average_from", None),
        ("training.batch_rows=512", "training.batch_rows", 512),
        ("backbone.hidden=[32, 64]", "backbone.hidden", (32, 64)),
        ("data.classes=[0, 7]", "data.classes", ("0", "7")),
        ("data.image={size: [8, 8], channels: 3}", "data.image.channels", 3),
        ("training.ramps.entropy.end=0.5", "training.ramps.entropy.end", 0.5),
        ("training.augment.flip=true", "training.augment.flip", True),
        ("method=softmax", "method.name", "softmax"),
        ("method.members=2", "method.members", 2),
        ("data.source=a=b.csv", "data.source", "a=b.csv"),
        ("pretraining={epochs: 3}", "pretraining.epochs", 3),
        ("pretraining.optimiser.learning_rate=1e-3", "pretraining.optimiser.learning_rate", 0.001),
        ("pretraining=null", "pretraining", None),
    ],
)
def test_overrides(override, path, value):
    found = parse_recipe(MINE, [override])
    for part in path.split("."):
        found = found[part] if isinstance(found, dict) else getattr(found, part)
    assert found == value


def test_later_overrides_win_and_the_mapping_stays_as_it_was():
    content = {**MINE, "training": {"epochs": 2, "seed": 3}}
    recipe = parse_recipe(content, ["training.epochs=4", "training.epochs=5"])
    assert (recipe.training.epochs, recipe.training.seed) == (5, 3)
    assert content["training"] == {"epochs": 2, "seed": 3}


def test_a_method_given_by_name_alone_can_be_refined():
    recipe = parse_recipe({**MINE, "method": "softmax"}, ["method.label_smoothing=0.1"])
    assert (recipe.method.name, recipe.method.label_smoothing) == ("softmax", 0.1)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["trainig.epochs=5"], ["'trainig'", "unknown", "training", "score"]),
        (["training.epoch=5"], ["'training.epoch'", "unknown", "epochs", "batch_size"]),
        (["method.gradient_wieght=1"], ["'method.gradient_wieght'", "unknown", "gradient_weight"]),
        (["method={name: duq, sigma: 1}"], ["'method.sigma'", "unknown", "length_scale"]),
        (["method.name=bogus"], ["'method.name'", "'bogus'", *METHODS]),
        (["method=bogus"], ["'method.name'", "'bogus'", *METHODS]),
        (["method=5"], ["'method'", "5", "section"]),
        (["training.ramps.entropy.strat=0"], ["'training.ramps.entropy.strat'", "unknown", "start, end"]),
        (["data.image={size: [8, 8], chanels: 1}"], ["'data.image."]),
        (["training.optimiser.name=adam"], ["'training.optimiser.name'", "'adam'", "'sgd' or 'adamw'"]),
        (["training.precision=fp16"], ["'training.precision'", "'fp32', 'tf32' or 'bf16'"]),
        (["training.epochs=0"], ["'training.epochs'", "0", "give a number above 0"]),
        (["training.epochs=many"], ["'training.epochs'", "'many'", "give a whole number"]),
        (["training.seed=-1"], ["'training.seed'", "-1"]),
        (["training.optimiser.learning_rate=.inf"], ["'training.optimiser.learning_rate'", "finite"]),
        (["training.optimiser.weight_decay=.nan"], ["'training.optimiser.weight_decay'", "finite"]),
        (["training=5"], ["'training'", "5", "section"]),
        (["name=null"], ["'name'", "None"]),
        (["data=null"], ["'data'", "section"]),
        (["data={}"], ["'data.source'", "missing"]),
        (["backbone.name=vgg"], ["'backbone.name'", "'vgg' is unknown", "auto, mlp, tabular, convnet"]),
        (["backbone.depth=3"], ["'backbone.depth'", "unknown", "feature_dim", "last_kernel"]),
        (["backbone.hidden=[8, wide]"], ["'backbone.hidden.1'", "'wide'"]),
        (["method.members=5000"], ["'method.members'", "5000", "1024"]),
        (["method.fast_weights=gamma:2"], ["'method.fast_weights'", "'gamma:2'", "normal", "sign"]),
        (["score.densities=[]"], ["'score.densities'"]),
        (["score.densities=[kernel]"], ["'score.densities'", "'kernel' is unknown", "nearest-neighbour"]),
        (["score.layer=trunk+"], ["'score.layer'", "'trunk+'", "empty name", "trunk.3+trunk"]),
        (["calibration.alpha=1"], ["'calibration.alpha'", "give a number below 1"]),
        (["data.validation=0.6", "data.calibration=0.4"], ["'data'", "validation=0.6", "calibration=0.4"]),
        (["training.patience=3", "training.average_from=0.5"], ["'training'", "average_from", "patience"]),
        (["method=softmax", "training.gradient_every=4"], ["training.gradient_every=4", "softmax", "classification"]),
        (["method=duq", "training.ramps.entropy.end=0.5"], ["training.ramps.entropy", "duq", "classification, gradient"]),
        (["method.mirror=true"], ["method.mirror=true", "training.augment.flip=false", "set both or neither"]),
        (["method={name: deep-ensemble, mirror: true}"], ["method.mirror=true", "flip=false", "set both or neither"]),
        (["method={name: batch-ensemble, mirror: true}"], ["method.mirror=true", "flip=false", "set both or neither"]),
        (["method.mirror=true", "pretraining.augment.flip=true"], ["training.augment.flip=false", "set both or neither"]),
        (["method={name: softmax, mirror: true}", "training.augment.flip=true"], ["'method.mirror'", "unknown"]),
        (["method={name: duq, mirror: false}", "training.augment.flip=true"], ["'method.mirror'", "unknown"]),
        (["method={name: gaussian, mirror: true}", "training.augment.flip=true"], ["'method.mirror'", "unknown"]),
        (["method.mirror=sometimes", "training.augment.flip=true"], ["'method.mirror'", "'sometimes'"]),
        (["pretraining=5"], ["'pretraining'", "5", "section"]),
        (["pretraining.epochs=0"], ["'pretraining.epochs'", "0", "give a number above 0"]),
        (["pretraining={epoch: 5}"], ["'pretraining.epoch'", "unknown", "epochs"]),
        (["pretraining={}", "backbone.weights=a.safetensors"], ["pretraining", "backbone.weights", "only one"]),
        (["pretraining={}", "method=deep-ensemble"], ["pretraining", "deep-ensemble", "leave it out"]),
        (["backbone.weights=a.safetensors", "method=deep-ensemble"], ["backbone.weights", "deep-ensemble", "leave it out"]),
        (["pretraining.ramps.entropy.end=0.5"], ["pretraining.ramps.entropy", "softmax", "classification"]),
        (["pretraining.gradient_every=4"], ["pretraining.gradient_every=4", "softmax", "no gradient", "leave the field out"]),
        (["pretraining={patience: 3, average_from: 0.5}"], ["'pretraining'", "average_from", "patience"]),
        (["epochs"], ["--set 'epochs'", "field=value"]),
        (["=5"], ["--set '=5'", "field=value"]),
        (["training.epochs=[1"], ["--set 'training.epochs=[1'", "YAML"]),
    ],
    ids=lambda part: " ".join(part) if isinstance(part, list) else None,
)
def test_a_mistake_is_one_line_that_names_the_field_and_what_is_allowed(overrides, words):
    with pytest.raises(InputError) as caught:
        parse_recipe(MINE, overrides)
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert word in message


@pytest.mark.parametrize("method", [name for name in METHODS if name != "deep-ensemble"])
def test_the_plain_network_of_a_recipe_is_a_softmax_networks_recipe(method):
    """Whatever the method, its training and its score: runs of one seed begin with the same network."""
    given = ["pretraining={epochs: 3, batch_size: 7, augment: {flip: true}}", "backbone.hidden=[5]", "data.validation=0.3"]
    own = [f"method={method}", "training.epochs=9", "training.batch_size=11", "training.optimiser.name=adamw"]
    common = ["training.seed=4", "training.precision=tf32"]
    plain = parse_recipe(MINE, [*given, *own, *common, "score.neighbour=2", "score.name=nearest-neighbour"]).plain()
    expected = ["training={epochs: 3, batch_size: 7, augment: {flip: true}}", *given[1:], *common, "method=softmax"]
    assert plain == parse_recipe(MINE, [*expected, "score.name=method"])


def test_recipes_are_read_from_files(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(MINE))
    assert load_recipe(path, ["training.epochs=2"]).training.epochs == 2


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"name: [", "is not YAML"),
        (b"", "holds no settings"),
        (b"- a\n- b", "holds no settings"),
        (b"\xff\xfe\x00", "cannot be read"),
        (b"!!python/object/apply:os.system ['true']", "is not YAML"),
    ],
)
def test_files_that_are_no_recipes(content, words, tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_bytes(content)
    with pytest.raises(InputError, match=words) as caught:
        load_recipe(path)
    assert "\n" not in str(caught.value)


def test_a_recipe_that_is_not_there_lists_those_that_are(tmp_path):
    with pytest.raises(InputError, match="two-moons"):
        load_recipe(tmp_path / "absent.yaml")
    with pytest.raises(InputError, match="cannot be read"):
        load_recipe(tmp_path)


def test_epochs_that_are_asked_for_are_not_extended():
    assert load_recipe("table").training.least_steps > 0
    assert load_recipe("table", ["training.epochs=3"]).training.least_steps == 0
    assert load_recipe("table", ["training.epochs=3", "training.least_steps=9"]).training.least_steps == 9


def test_effort_multiplies_the_length_of_training():
    recipe = load_recipe("digits", ["pretraining.epochs=8", "training.epochs=5", "training.least_steps=100"])
    lengths = ["pretraining.epochs=32", "training.epochs=20", "training.least_steps=400"]
    assert effort_overrides(recipe, 4) == lengths
    assert effort_overrides(recipe, 0.01) == ["pretraining.epochs=1", "training.epochs=1", "training.least_steps=1"]
