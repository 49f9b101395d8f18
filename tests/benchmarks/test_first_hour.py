"""Small image tasks: what is drawn, and a record and its table from networks of a second."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks import first_hour, first_hour_tasks
from benchmarks.first_hour_tasks import DEVELOPMENT, NEAR, REPORTED, TASKS, Plan
from besnn.data import Dataset, ImageSpec

FAR = ("noise", "flat colours", "text", "blurred", "gradients", "digits")
PLAN = Plan("made up", (0, 2), 36, FAR, spec=ImageSpec(16, channels=3))


@pytest.fixture
def pools(monkeypatch):
    """Training and test images of three classes: the brightness says which, the first pixel says which image."""
    rng = np.random.default_rng(0)

    def pool(count, first):
        labels = np.arange(count) % 3
        images = (80 * labels[:, None, None, None] + rng.integers(0, 60, (count, 3, 16, 16))).astype(np.uint8)
        images[:, 0, 0, 0] = np.arange(first, first + count)
        return Dataset(images, labels, ("dark", "grey", "light"), "made up", {"made up": "hash"})

    both = pool(120, 0), pool(60, 120)
    monkeypatch.setattr(first_hour_tasks, "UNKNOWN", 50)
    monkeypatch.setattr(first_hour_tasks, "_pools", lambda source, data_dir: both)
    return both


def test_tasks_share_no_image_between_training_and_test(pools):
    task = PLAN.make(0, None)
    assert task.training.class_names == ("dark", "light")
    assert np.bincount(task.training.labels).tolist() == [36, 36]
    numbers = [set(part.inputs[:, 0, 0, 0].tolist()) for part in (task.training, task.test)]
    assert max(numbers[0]) < 120 <= min(numbers[1])
    assert len(numbers[0]) == 72
    assert task.unknown[NEAR].mean() == pytest.approx(110, abs=5)  # the class between
    assert list(task.unknown) == [NEAR, *PLAN.far]
    assert {images.shape[1:] for images in task.unknown.values()} == {(3, 16, 16)}
    again, other = PLAN.make(0, None), PLAN.make(1, None)
    assert np.array_equal(again.training.inputs, task.training.inputs)
    assert not np.array_equal(other.training.inputs, task.training.inputs)


def test_a_mosaic_joins_four_images_of_one_class(pools):
    task = Plan("made up", (0, 2), 5, (), mosaic=True, spec=ImageSpec(32, channels=3)).make(0, None)
    assert task.training.inputs.shape == (10, 3, 32, 32)
    corners = task.training.inputs[:, 0, ::16, ::16].reshape(10, 4)
    labels = pools[0].labels[corners]
    assert np.array_equal(labels, np.repeat([[0] * 4, [2] * 4], 5, axis=0))


def test_signs_have_one_ink_on_a_faint_training_image(pools):
    like, rng = pools[0].inputs, np.random.default_rng(0)
    blank, full = (first_hour_tasks.signs(like, np.full((5, 1, 28, 28), ink, np.uint8), rng) for ink in (0, 255))
    assert blank.shape == full.shape == (50, 3, 16, 16)
    assert blank.std(axis=(2, 3)).max() < like.std(axis=(2, 3)).min() / 2
    middle = full[:, :, 6:10, 6:10]  # away from the edges, which are turned and blurred
    assert np.ptp(middle.astype(int), axis=(2, 3)).max() == 0
    inks = {tuple(pixel) for pixel in like.transpose(0, 2, 3, 1).reshape(-1, 3)}
    assert {tuple(pixel) for pixel in middle[:, :, 0, 0]} <= inks


def test_development_tasks_of_a_reported_set_draw_from_its_training_images_alone(monkeypatch):
    splits = []

    def training_images(name, split, data_dir):
        splits.append((name, split))
        return Dataset(np.zeros((400, 1, 2, 2), np.uint8), np.arange(400) % 2, ("a", "b"), name, {})

    monkeypatch.setattr(first_hour_tasks, "load", training_images)
    training, test = first_hour_tasks._pools("cifar10:train", Path("nowhere"))
    assert splits == [("cifar10", "train")]
    assert (len(training), len(test)) == (100, 300)


def test_settings_are_never_chosen_on_what_is_reported():
    assert {plan.source for plan in REPORTED.values()}.isdisjoint(plan.source for plan in DEVELOPMENT.values())
    choices = {(plan.source.partition(":")[0], plan.classes) for plan in DEVELOPMENT.values()}
    assert choices.isdisjoint((plan.source, plan.classes) for plan in REPORTED.values())
    reported = {name for plan in REPORTED.values() for name in plan.far if name not in first_hour_tasks.MADE}
    assert reported.isdisjoint(name for plan in DEVELOPMENT.values() for name in plan.far)


def test_a_record_and_its_table(pools, monkeypatch, tmp_path):
    monkeypatch.setitem(TASKS, "trial", PLAN)
    monkeypatch.setattr(first_hour, "EPOCHS", 1)
    measure = first_hour.measure
    quick = ["pretraining.epochs=1", "training.epochs=1", "backbone.channels=2", "data.calibration=0.4", "method.members=2"]
    monkeypatch.setattr(first_hour, "measure", lambda *arguments: measure(*arguments, overrides=quick))
    said = []
    first_hour.write_records(["trial"], [0], None, "cpu", tmp_path, said.append)
    first_hour.write_records(["trial"], [0], None, "cpu", tmp_path, said.append)  # is there already
    assert len(said) == 1
    (table,) = first_hour.first_hour_tables(tmp_path)
    assert [row[0].rpartition(", ")[2] for row in table.rows] == ["combined", *["energy", "nearest neighbour"] * 2, "LOF"]
    noise = table.header.index("noise")
    assert table.rows[0][noise].startswith("1.000")  # pixels tell it, whatever the network has learned
    assert "over 1 seed," in table.note
