import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from besnn.data.splits import split_indices
from besnn.errors import InputError


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


def test_equal_classes_are_divided_equally():
    labels = np.tile(np.arange(10), 30)
    part, _ = split_indices(300, [0.5], seed=3, labels=labels)
    assert np.bincount(labels[part]).tolist() == [15] * 10


def test_the_seed_decides():
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
