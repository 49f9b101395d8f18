import copy
import random

import pytest
import torch
from torch import nn

from besnn.data import two_moons
from besnn.errors import DataError, InputError
from besnn.storage.tensor_file import read_tensor_file, write_tensor_file
from besnn.training.checkpoint import CHECKPOINT, average_weights, save_checkpoint

VARIANTS = {
    "sgd": [],
    "adamw": ["training.optimiser={name: adamw, learning_rate: 0.01}"],
    "average": ["training.average_from=0.3"],
    "patience": ["training.patience=2", "training.epochs=6", "training.optimiser.learning_rate=0.5"],
    "schedules": [
        "training.gradient_every=4",
        "training.ramps={entropy: {start: 0.2, end: 0.6}, gradient: {start: 0.1}}",
        "training.schedule={name: step, warmup: 0.2}",
    ],
    "bf16": ["training.precision=bf16"],
    "gaussian": ["method=gaussian"],
    "own inputs": ["method.own_inputs=true", "method.members=3", "method.match_counts=true"],
}
STEPS = 18  # 3 epochs of 6


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_run_stopped_several_times_ends_as_one_that_was_not(variant, train, tiny_recipe, tmp_path, assert_same_weights):
    recipe, data, held_out = tiny_recipe(*VARIANTS[variant]), two_moons(100), two_moons(40, seed=1)
    whole = train(recipe, data, validation=held_out)
    stops = random.Random(variant)
    for _ in range(3):
        train(recipe, data, validation=held_out, folder=tmp_path, resume=True, stop_after=stops.randrange(STEPS // 2))
    continued = train(recipe, data, validation=held_out, folder=tmp_path, resume=True)
    assert_same_weights(continued, whole)
    assert continued.history == whole.history


@pytest.mark.parametrize("method", ["be-snn", "duq"])
def test_images_with_batchnorm_and_augmentation(method, train, tiny_recipe, stripes, tmp_path, assert_same_weights):
    settings = ["backbone.hidden=[4, 4]", "training.augment={crop: 2, flip: true}", "training.average_from=0.5"]
    recipe = tiny_recipe(*settings, *([] if method == "be-snn" else ["method={name: duq, embedding_dim: 4}"]))
    whole = train(recipe, stripes)
    for stop in (2, 5, 1):
        train(recipe, stripes, folder=tmp_path, resume=True, stop_after=stop, checkpoint_every=1)
    assert_same_weights(train(recipe, stripes, folder=tmp_path, resume=True), whole)


def test_a_run_can_be_stopped_at_every_step(train, tiny_recipe, moons, tmp_path, assert_same_weights):
    recipe = tiny_recipe("training.batch_size=40", "training.average_from=0.4")  # 3 epochs of 4 steps
    whole = train(recipe, moons)
    for stop in (0, 1, 4, 6, 11):
        folder = tmp_path / str(stop)
        train(recipe, moons, folder=folder, stop_after=stop, checkpoint_every=2)
        assert_same_weights(train(recipe, moons, folder=folder, resume=True), whole)


@pytest.mark.parametrize("every", [1, 1000])
def test_the_interval_of_checkpoints_has_no_influence(every, train, tiny_recipe, moons, tmp_path, assert_same_weights):
    recipe = tiny_recipe("training.average_from=0.4")
    assert_same_weights(train(recipe, moons, folder=tmp_path, checkpoint_every=every), train(recipe, moons))


@pytest.mark.parametrize("patient", [True, False])
def test_with_a_long_pause_only_the_first_and_the_last_checkpoint_are_written(
    patient, train, tiny_recipe, moons, tmp_path, monkeypatch
):
    steps = []

    def save(path, progress, *rest):
        steps.append(progress.step)
        save_checkpoint(path, progress, *rest)

    monkeypatch.setattr("besnn.training.trainer.save_checkpoint", save)
    recipe = tiny_recipe(
        *([] if patient else ["training.patience=1", "training.epochs=50", "training.optimiser.learning_rate=2"])
    )
    run = train(recipe, moons, validation=moons, folder=tmp_path, checkpoint_every=1, checkpoint_pause=1000)
    assert steps == [1, run.trainer.progress.step]
    assert (run.trainer.progress.step == run.trainer.total_steps) == patient


def test_a_finished_run_trains_no_further(train, tiny_recipe, moons, tmp_path, assert_same_weights):
    recipe = tiny_recipe("training.average_from=0.4")
    first = train(recipe, moons, folder=tmp_path)
    again = train(recipe, moons, folder=tmp_path, resume=True, stop_after=0)
    assert_same_weights(first, again)
    assert first.history == again.history


def test_a_fresh_start_forgets_an_earlier_checkpoint(train, tiny_recipe, moons, tmp_path):
    train(tiny_recipe(), moons, folder=tmp_path)
    train(tiny_recipe(), moons, folder=tmp_path, stop_after=1)
    assert not (tmp_path / "checkpoint.safetensors").exists()


def test_a_checkpoint_of_another_run_is_refused(train, tiny_recipe, moons, tmp_path):
    train(tiny_recipe(), moons, folder=tmp_path, identity="mine")
    with pytest.raises(InputError, match="another recipe or other data") as caught:
        train(tiny_recipe(), moons, folder=tmp_path, resume=True, identity="yours")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "says"),
    [(b"", "truncated"), (b"\x89PNG\r\n\x1a\n" + bytes(100), "not a safetensors file"), (bytes(8) + b"{}", "truncated")],
    ids=["empty", "png", "zeros"],
)
def test_a_foreign_checkpoint_gets_one_line(content, says, train, tiny_recipe, moons, tmp_path):
    (tmp_path / "checkpoint.safetensors").write_bytes(content)
    with pytest.raises(DataError, match=says) as caught:
        train(tiny_recipe(), moons, folder=tmp_path, resume=True)
    assert "\n" not in str(caught.value)
    assert "delete it" in str(caught.value)


@pytest.mark.parametrize("missing", ["progress", "tensors"])
def test_a_checkpoint_that_does_not_fit_gets_one_line(missing, train, tiny_recipe, moons, tmp_path):
    train(tiny_recipe(), moons, folder=tmp_path)
    path = tmp_path / "checkpoint.safetensors"
    tensors, header = read_tensor_file(path, CHECKPOINT)
    if missing == "progress":
        del header["progress"]["step"]
        header["progress"]["stride"] = 3
    else:
        tensors = {name: value for name, value in tensors.items() if not name.startswith("model/")}
    write_tensor_file(path, CHECKPOINT, tensors, header)
    with pytest.raises(DataError, match="does not fit") as caught:
        train(tiny_recipe(), moons, folder=tmp_path, resume=True)
    assert "\n" not in str(caught.value)


def test_partial_files_of_killed_runs_are_removed(train, tiny_recipe, moons, tmp_path):
    (tmp_path / ".checkpoint-x8s7.partial.safetensors").write_bytes(b"half")
    (tmp_path / ".log-abcd.partial.csv").write_bytes(b"half")
    (tmp_path / "notes.partial").write_text("mine")
    train(tiny_recipe(), moons, folder=tmp_path, resume=True)
    names = {path.name for path in tmp_path.iterdir() if not path.name.startswith("events.")}
    assert names == {"checkpoint.safetensors", "log.csv", "notes.partial"}


def test_the_running_mean_is_the_mean():
    network = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    average, seen = {}, []
    for count in range(1, 8):
        network(torch.randn(5, 3))  # moves the statistics
        with torch.no_grad():
            network[0].weight.normal_()
        seen.append(copy.deepcopy(network.state_dict()))
        average_weights(average, network, count)
    assert set(average) == set(seen[0]) - {"1.num_batches_tracked"}
    for name, mean in average.items():
        expected = torch.stack([weights[name].double() for weights in seen]).mean(0)
        torch.testing.assert_close(mean.double(), expected, rtol=1e-5, atol=1e-6)
