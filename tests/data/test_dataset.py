from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from besnn.data import Dataset, keep_classes, require_classes, two_moons
from besnn.data.dataset import split_indices
from besnn.errors import InputError


def letters(labels=(0, 1, 2, 1, 0), names=("a", "b", "c")):
    inputs = np.arange(len(labels), dtype=np.float32)[:, None]
    return Dataset(inputs, None if names is None else np.array(labels, np.int64), names or (), name="letters")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"inputs": np.zeros((5, 2))}, "float64"),
        ({"inputs": np.zeros((5, 8, 8), np.uint8)}, r"\[5, 8, 8\]"),
        ({"inputs": np.zeros((5, 1, 8, 8), np.float32)}, "uint8"),
        ({"labels": np.zeros(4, np.int64)}, "one per input"),
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
def test_split_keeps_inputs_with_their_labels(stratify):
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


def test_align_classes_ignores_classes_that_do_not_occur():
    assert letters(labels=(0, 1)).align_classes(["b", "a"]).labels.tolist() == [1, 0]
    with pytest.raises(InputError, match="the model does not know class 'c'"):
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
    ("dataset", "words"),
    [
        (letters(names=None), "no labels"),
        (replace(letters(), lost="column 'time' is too fine"), "letters: column 'time' is too fine"),
    ],
)
def test_require_classes(dataset, words):
    assert require_classes(letters()).tolist() == [0, 1, 2, 1, 0]
    with pytest.raises(InputError, match=words):
        require_classes(dataset)


@given(rows=st.integers(10, 200), share=st.floats(0.1, 0.8), seed=st.integers(0, 9), classes=st.integers(1, 5))
def test_parts_hold_every_row_once(rows, share, seed, classes):
    labels = np.random.default_rng(seed).integers(0, classes, rows)
    for given_labels in (None, labels):
        parts = split_indices(rows, [share, 1], seed=seed, labels=given_labels)
        assert [len(part) for part in parts[:2]] == [round(share * rows), 1]
        assert sorted(np.concatenate(parts).tolist()) == list(range(rows))


@given(sizes=st.lists(st.integers(1, 60), min_size=2, max_size=6), share=st.floats(0.2, 0.8), seed=st.integers(0, 9))
def test_every_part_has_each_class_in_its_share(sizes, share, seed):
    labels = np.repeat(np.arange(len(sizes)), sizes)
    rows = len(labels)
    count = round(share * rows)
    if not 0 < count < rows:
        return
    part, _ = split_indices(rows, [count], seed=seed, labels=labels)
    # Each class is cut at one common quantile, give or take half a row, and the common quantile is off by as much in all.
    for label, size in enumerate(sizes):
        slack = 0.5 + size * len(sizes) / (2 * rows)
        assert abs(np.sum(labels[part] == label) - size * count / rows) <= slack + 1e-9


def test_the_seed_determines_the_parts():
    first, second, other = (split_indices(100, [0.5], seed=seed)[0] for seed in (1, 1, 2))
    assert np.array_equal(first, second)
    assert not np.array_equal(first, other)


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ([1.0], "not between 0 and 1"),
        ([-0.1], "not between 0 and 1"),
        ([0], "would be empty"),
        ([0.001], "would be empty"),
        ([10], "leave nothing"),
        ([0.6, 0.6], "leave nothing"),
    ],
)
def test_impossible_sizes(sizes, words):
    with pytest.raises(InputError, match=words):
        split_indices(10, sizes, seed=0)


def column(names):
    """A table of one column whose rows have these classes."""
    classes = tuple(dict.fromkeys(names))
    labels = np.array([classes.index(name) for name in names])
    return Dataset(np.arange(len(names), dtype=np.float32)[:, None], labels, classes, "table")


@pytest.mark.parametrize(
    ("names", "fine"),
    [
        ([f"id{row}" for row in range(60)], False),
        ([str(row // 2) for row in range(60)], False),  # a whole-numbered target
        ([str(row // 10 + 0.25) for row in range(500)], False),  # a target with fractions
        ([str(row % 10 + 0.5) for row in range(500)], True),  # half stars
        ([str(row // 4) for row in range(60)], True),
        (["a", "b", "c"], True),  # few rows, but no identifiers
        (["only"] * 60, True),
    ],
)
def test_identifiers_and_quantities_are_no_classes(names, fine):
    if fine:
        assert len(require_classes(column(names))) == len(names)
    else:
        with pytest.raises(InputError, match=r"table has \d+ classes, such as .*: those are numbers or identifiers; .*--label"):
            require_classes(column(names))
