from dataclasses import replace

import numpy as np
import pytest

from besnn.data import Dataset, keep_classes, require_classes, two_moons
from besnn.errors import InputError


def letters(labels=(0, 1, 2, 1, 0), names=("a", "b", "c")):
    inputs = np.arange(len(labels), dtype=np.float32)[:, None]
    return Dataset(inputs, None if names is None else np.array(labels, np.int64), names or (), name="letters")


def test_images_and_tables_are_told_apart():
    images = Dataset(np.zeros((2, 1, 4, 4), np.uint8), None, (), name="images")
    assert (len(images), images.is_image) == (2, True)
    assert not letters().is_image


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"inputs": np.zeros((5, 2))}, "float64"),
        ({"inputs": np.zeros((5, 8, 8), np.uint8)}, r"\[5, 8, 8\]"),
        ({"inputs": np.zeros((5, 1, 8, 8), np.float32)}, "uint8"),
        ({"labels": np.zeros(4, np.int64)}, "one an input"),
        ({"labels": np.zeros(5, np.int32)}, "int32"),
        ({"labels": np.array([0, 1, 2, 3, 0])}, "3 class names"),
        ({"labels": np.array([0, -1, 0, 0, 0])}, "-1"),
        ({"feature_names": ("x", "y")}, "2 feature names"),
    ],
)
def test_wrong_parts_are_refused(change, words):
    parts = {"inputs": np.zeros((5, 1), np.float32), "labels": np.zeros(5, np.int64), "class_names": ("a", "b", "c")}
    with pytest.raises(InputError, match=words):
        Dataset(**(parts | change), name="wrong")


def test_subset_keeps_order_and_names():
    part = letters().subset([4, 2])
    assert part.inputs.ravel().tolist() == [4, 2]
    assert part.labels.tolist() == [0, 2]
    assert part.class_names == ("a", "b", "c")
    assert letters(names=None).subset([1]).labels is None


@pytest.mark.parametrize("stratify", [True, False])
def test_split_divides_inputs_with_their_labels(stratify):
    whole = two_moons(100)
    parts = whole.split(0.5, 20, seed=1, stratify=stratify)
    assert [len(part) for part in parts] == [50, 20, 30]
    pairs = {(tuple(point), label) for part in parts for point, label in zip(part.inputs.tolist(), part.labels, strict=True)}
    assert pairs == {(tuple(point), label) for point, label in zip(whole.inputs.tolist(), whole.labels, strict=True)}
    balanced = [np.bincount(part.labels).tolist() for part in parts] == [[25, 25], [10, 10], [15, 15]]
    assert balanced == stratify


def test_align_classes_renumbers_by_name():
    aligned = letters().align_classes(["c", "x", "b", "a"])
    assert aligned.labels.tolist() == [3, 2, 0, 2, 3]
    assert aligned.class_names == ("c", "x", "b", "a")
    same = letters()
    assert same.align_classes(["a", "b", "c"]) is same
    assert letters(names=None).align_classes(["z"]).class_names == ()


def test_align_classes_cares_only_for_classes_that_occur():
    assert letters(labels=(0, 1)).align_classes(["b", "a"]).labels.tolist() == [1, 0]
    with pytest.raises(InputError, match="class 'c' is not one the model knows"):
        letters().align_classes(["b", "a"])


def test_keep_classes():
    kept = keep_classes(letters(), ["c", "a"])
    assert kept.class_names == ("a", "c")
    assert kept.labels.tolist() == [0, 1, 0]
    assert kept.inputs.ravel().tolist() == [0, 2, 4]


@pytest.mark.parametrize(
    ("dataset", "words"), [(letters(names=None), "no labels"), (letters(), "no class 'z': it has a, b, c")]
)
def test_keep_classes_refuses(dataset, words):
    with pytest.raises(InputError, match=words):
        keep_classes(dataset, ["a", "z"])


@pytest.mark.parametrize(
    ("dataset", "words"), [(letters(names=None), "no labels"), (letters(labels=(1, 1)), r"one class only \(b\)")]
)
def test_require_classes_refuses(dataset, words):
    with pytest.raises(InputError, match=words):
        require_classes(dataset)


def test_require_classes_refuses_what_float32_does_not_hold():
    with pytest.raises(InputError, match="letters: column 'time' is too fine"):
        require_classes(replace(letters(), lost="column 'time' is too fine"))


def test_require_classes_gives_the_labels():
    assert require_classes(letters()).tolist() == [0, 1, 2, 1, 0]
