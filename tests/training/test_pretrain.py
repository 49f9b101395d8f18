"""Pretraining: members that start from the trunk of a plain softmax network."""

import shutil
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
import torch

from besnn.cli.app import run as besnn
from besnn.errors import BesnnError, DataError, InputError
from besnn.model import Preprocessing, convnet
from besnn.training.batches import ArraySource
from besnn.training.device import make_fabric
from besnn.training.fit import _compared, fit_detector
from besnn.training.pretrain import TrainingData, pretrained_network
from besnn.training.progress import Reporter
from besnn.training.trainer import RunOptions

SETTINGS = (
    "backbone={hidden: [4, 6], feature_dim: 5}",
    "method.norm=member",
    "data={source: stripes, validation: 0.25, calibration: 0}",
    "training.epochs=2",
    "pretraining={epochs: 3, batch_size: 12, optimiser: {learning_rate: 0.1}}",
)
PLAIN_STEPS, STEPS = 3 * (48 // 12), 2 * (48 // 16)
KEEP = "training.optimiser.learning_rate=1e-30"
"""No weight but zero changes by so small a step."""


@pytest.fixture
def recipe_of(tiny_recipe):
    return lambda *overrides: tiny_recipe(*SETTINGS, *overrides)


@dataclass
class Count(Reporter):
    """Notes where each training starts and counts steps; may stop the run before one of them."""

    stop_before: int | None = None
    begun: list[tuple[int, int]] = field(default_factory=list)
    steps: int = 0

    def start(self, done, total):
        self.begun.append((done, total))

    def step(self):
        self.steps += 1
        if self.steps == self.stop_before:
            raise KeyboardInterrupt


def trunk_of(detector):
    return detector.model.feature_extractor.trunk.state_dict()


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(value, other[name]) for name, value in one.items())


def same_model(one, other):
    return same(one.detector.model.state_dict(), other.detector.model.state_dict())


def start_of(recipe, dataset):
    """Return the backbone that training would start from."""
    fabric = make_fabric(accelerator="cpu")
    source = ArraySource(dataset, fabric.device)
    data = TrainingData(source, None, Preprocessing.fit(source.sample()), num_classes=2)
    return pretrained_network(recipe, data, fabric, RunOptions(), identity="")[0]


@pytest.mark.parametrize(("method", "seed"), [("be-snn", 3), ("gaussian", 0)])
def test_training_starts_from_the_trunk_of_a_softmax_network_and_a_fresh_head(method, seed, recipe_of, stripes):
    recipe = recipe_of(f"method={method}", "data.validation=0", f"training.seed={seed}")
    by_hand = fit_detector(recipe.plain(), stripes).detector.model
    assert by_hand.method == "softmax"
    backbone = start_of(recipe, stripes)
    assert same(backbone.trunk.state_dict(), by_hand.feature_extractor.trunk.state_dict())
    for name, parameter in backbone.head.named_parameters():
        assert not torch.equal(parameter, by_hand.feature_extractor.head.get_parameter(name))
    assert same(backbone.head.state_dict(), start_of(recipe, stripes).head.state_dict())
    assert all(parameter.requires_grad for parameter in backbone.parameters())
    other = start_of(recipe_of("data.validation=0", f"training.seed={seed + 1}"), stripes)
    for part in ("trunk", "head"):
        assert not same(backbone.get_submodule(part).state_dict(), other.get_submodule(part).state_dict())


@pytest.mark.parametrize(
    "further",
    [(), ("pretraining.patience=1", "pretraining.optimiser.learning_rate=3"), ("pretraining.average_from=0.4",)],
    ids=["last weights", "best weights", "averaged weights"],
)
def test_members_that_do_not_learn_keep_the_plain_weights(further, recipe_of, stripes):
    recipe = recipe_of(KEEP, *further)
    plain = fit_detector(recipe.plain(), stripes)
    if "pretraining.patience=1" not in further:
        assert len(plain.history) == 3
    members = fit_detector(recipe, stripes).detector
    assert members.model.members == 2
    before, after = trunk_of(plain.detector), trunk_of(members)
    shared = ["0.weight", "4.weight"]  # the convolutions
    assert all(torch.equal(after[name], before[name]) for name in shared)
    for name in ("1.weight", "1.bias", "5.weight", "5.bias"):  # of BatchNorm, a copy for each member
        torch.testing.assert_close(after[name], before[name].repeat(2), rtol=0, atol=1e-25)


@pytest.mark.parametrize(
    ("stop_before", "begun"),
    [
        (8, [(6, PLAIN_STEPS), (0, STEPS)]),  # in the plain network's second epoch, of four steps each
        (PLAIN_STEPS + 1, [(PLAIN_STEPS, PLAIN_STEPS), (0, STEPS)]),  # between the two
        (PLAIN_STEPS + 5, [(PLAIN_STEPS, PLAIN_STEPS), (4, STEPS)]),
    ],
)
def test_a_stopped_run_continues_to_the_same_weights(stop_before, begun, recipe_of, stripes, tmp_path):
    recipe = recipe_of()
    whole = fit_detector(recipe, stripes)  # without a folder
    often = {"run_folder": tmp_path, "checkpoint_every": 2, "checkpoint_pause": 0}
    with pytest.raises(KeyboardInterrupt):
        fit_detector(recipe, stripes, reporter=Count(stop_before), **often)
    rest = Count()
    continued = fit_detector(recipe, stripes, resume=True, reporter=rest, **often)
    assert rest.begun == begun
    assert rest.steps == sum(total - done for done, total in begun)
    assert same_model(continued, whole)
    assert continued.history == whole.history


@pytest.mark.parametrize("overrides", [["pretraining.batch_size=16"], ["training.seed=1"]], ids=" ".join)
def test_a_stopped_plain_network_continues_only_as_itself(overrides, recipe_of, stripes, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        fit_detector(recipe_of(), stripes, run_folder=tmp_path, reporter=Count(6))
    with pytest.raises(InputError, match=r"plain/checkpoint\.safetensors belongs to another recipe or other data"):
        fit_detector(recipe_of(*overrides), stripes, run_folder=tmp_path, resume=True)


@pytest.fixture
def replaced_network(recipe_of, stripes, tmp_path):
    """A run stopped while its members train, whose stored plain network was replaced by that of another seed."""
    places = {"run_folder": tmp_path / "run", "plain_networks": tmp_path / "plain"}
    with pytest.raises(KeyboardInterrupt):
        fit_detector(recipe_of(), stripes, reporter=Count(PLAIN_STEPS + 5), **places)
    (own,) = (tmp_path / "plain").iterdir()
    fit_detector(recipe_of("training.seed=1"), stripes, plain_networks=tmp_path / "others")
    (other,) = (tmp_path / "others").iterdir()
    other.replace(own)
    return places


def test_members_do_not_continue_from_another_plain_network(recipe_of, stripes, replaced_network):
    shutil.rmtree(replaced_network["run_folder"] / "plain")
    with pytest.raises(InputError, match="belongs to another recipe or other data"):
        fit_detector(recipe_of(), stripes, resume=True, **replaced_network)


def test_a_run_continues_with_the_plain_network_that_it_trained(recipe_of, stripes, replaced_network):
    """On a GPU two runs that train the same network side by side do not end with the same bits."""
    continued = fit_detector(recipe_of(), stripes, resume=True, **replaced_network)
    assert same_model(continued, fit_detector(recipe_of(), stripes))


def test_runs_that_begin_with_the_same_network_train_it_once(recipe_of, stripes, tmp_path):
    first = Count()
    fit_detector(recipe_of(), stripes, reporter=first, plain_networks=tmp_path)
    assert first.begun == [(0, PLAIN_STEPS), (0, STEPS)]
    (kept,) = tmp_path.iterdir()
    content = kept.read_bytes()
    for overrides in (["method.members=3", "training.epochs=1"], ["method=duq", "score.neighbour=2"]):
        recipe, second = recipe_of(*overrides), Count()
        shared = fit_detector(recipe, stripes, reporter=second, plain_networks=tmp_path)
        assert second.begun == [(0, recipe.training.epochs * 3)]
        assert same_model(shared, fit_detector(recipe, stripes))
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [content]


@pytest.mark.parametrize(
    "overrides",
    [
        ["training.seed=1"],
        ["training.precision=bf16"],
        ["pretraining.epochs=2"],
        [],
    ],
    ids=lambda overrides: " ".join(overrides) or "other images",
)
def test_another_plain_network_is_never_taken(overrides, recipe_of, stripes, tmp_path):
    fit_detector(recipe_of(), stripes, plain_networks=tmp_path)
    if not overrides:
        stripes = replace(stripes, inputs=stripes.inputs + np.uint8(1))
    second, recipe = Count(), recipe_of(*overrides)
    found = fit_detector(recipe, stripes, reporter=second, plain_networks=tmp_path)
    assert [done for done, _ in second.begun] == [0, 0]
    assert len(list(tmp_path.iterdir())) == 2
    assert same_model(found, fit_detector(recipe, stripes))


def test_a_kept_network_that_is_damaged_ends_in_one_line(recipe_of, stripes, tmp_path):
    fit_detector(recipe_of(), stripes, plain_networks=tmp_path)
    (kept,) = tmp_path.iterdir()
    content = kept.read_bytes()
    for damaged in (b"", content[:-9], content[:-1] + bytes([content[-1] ^ 1])):
        kept.write_bytes(damaged)
        with pytest.raises(DataError, match=r"plain network .* delete it to train it again") as caught:
            fit_detector(recipe_of(), stripes, plain_networks=tmp_path)
        assert "\n" not in str(caught.value)


def test_the_users_own_network_is_not_pretrained(recipe_of, stripes, never_started):
    own = convnet((1, 8, 8), (4,), 5)
    with pytest.raises(InputError, match="pretraining trains the recipe's own backbone: leave it out for a network") as caught:
        fit_detector(recipe_of(), stripes, feature_extractor=own, reporter=never_started)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["pretraining.patience=1", "data.validation=0"], r"pretraining\.patience needs validation data"),
        (["training.patience=1", "data.validation=0"], r"training\.patience needs validation data"),
        (["score.name=bogus"], r"score\.name='bogus' is unknown for be-snn"),
        (["score.name=combined", "data.validation=0"], "'combined' needs validation data"),
    ],
    ids=lambda part: " ".join(part) if isinstance(part, list) else None,
)
def test_a_mistake_is_noticed_before_the_plain_network_is_trained(overrides, words, recipe_of, stripes, never_started):
    with pytest.raises(InputError, match=words) as caught:
        fit_detector(recipe_of(*overrides), stripes, reporter=never_started)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["auto", "mlp"])
def test_a_backbone_without_a_trunk_is_refused_before_training(name, tiny_recipe, moons, never_started):
    with pytest.raises(InputError, match=r"backbone 'mlp' has no trunk to start from: leave out .* pretraining"):
        fit_detector(tiny_recipe(f"backbone.name={name}", "pretraining={epochs: 1}"), moons, reporter=never_started)


def test_a_run_that_begins_anew_never_continues_from_the_one_before_it(recipe_of, stripes, tmp_path):
    fit_detector(recipe_of("training.epochs=1"), stripes, run_folder=tmp_path)
    with pytest.raises(KeyboardInterrupt):
        fit_detector(recipe_of(), stripes, run_folder=tmp_path, reporter=Count(6))
    continued = fit_detector(recipe_of(), stripes, run_folder=tmp_path, resume=True)
    assert same_model(continued, fit_detector(recipe_of(), stripes))


def test_a_plain_network_that_diverges_names_its_own_learning_rate(recipe_of, stripes):
    recipe = recipe_of("pretraining.optimiser={learning_rate: 1e+30, clip: 0}")
    with pytest.raises(BesnnError, match=r"training diverged in epoch 1 .*: lower pretraining\.optimiser\.learning_rate"):
        fit_detector(recipe, stripes)


def test_the_command_line_does_not_throw_a_stopped_plain_network_away(stripe_folder, tmp_path, capsys, monkeypatch):
    settings = ["backbone={hidden: [4], feature_dim: 4}", "method={members: 2, noise_dim: 4, hidden_dim: 8}"]
    settings += ["data.calibration=0.4", "training={epochs: 1}", "pretraining={epochs: 2}"]
    words = ["train", str(stripe_folder), "-o", str(tmp_path / "model.safetensors"), "-q"]
    words += [word for setting in settings for word in ("--set", setting)]

    def interrupted(*arguments):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("besnn.training.pretrain.with_trunk", interrupted)  # Ctrl-C after the plain network's last epoch
        assert besnn(words) == 130
    assert besnn(words) == 2
    assert "or drop it with --restart" in capsys.readouterr().err
    assert besnn([*words, "--resume"]) == 0


def test_the_accuracy_of_both_networks_is_told(recipe_of, stripes):
    class Listen(Reporter):
        def __init__(self):
            self.said = []

        def say(self, text):
            self.said.append(text)

    listener = Listen()
    fitted = fit_detector(recipe_of(), stripes, reporter=listener)
    plain = fit_detector(recipe_of().plain(), stripes).history[-1]["validation_accuracy"]
    own = fitted.history[-1]["validation_accuracy"]
    told = f"held-out accuracy: be-snn {100 * own:.1f} %, the plain network before it {100 * plain:.1f} %"
    assert listener.said[-1].startswith(told)


@pytest.mark.parametrize(("accuracy", "worse"), [(0.8, False), (0.75, False), (0.6, True)])
def test_a_clearly_better_plain_network_is_recommended(accuracy, worse):
    assert ("--method softmax is the better choice" in _compared("be-snn", accuracy, 0.8, 200)) == worse
