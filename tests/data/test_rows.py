import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from besnn.data.rows import Rounding, encode_labels, numbered_batches, rows_from_array
from besnn.errors import DataError, InputError

PIXELS = np.random.default_rng(0).integers(0, 256, (4, 3, 5, 6), dtype=np.uint8)


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (PIXELS, PIXELS),
        (PIXELS.transpose(0, 2, 3, 1), PIXELS),
        (PIXELS[:, 0], PIXELS[:, :1]),
        (PIXELS[:, :1], PIXELS[:, :1]),
        (PIXELS[:, :1].transpose(0, 2, 3, 1), PIXELS[:, :1]),
        (PIXELS.astype(np.int64), PIXELS),
        (PIXELS.astype(np.float32) / 255, PIXELS),
        (PIXELS.transpose(0, 2, 3, 1) / 255, PIXELS),
        (PIXELS > 127, (PIXELS > 127) * np.uint8(255)),
    ],
)
def test_images_of_any_layout_and_range(rows, expected):
    converted = rows_from_array(rows)
    images = converted.inputs
    assert images.dtype == np.uint8
    assert np.array_equal(images, expected)
    assert images.flags.c_contiguous
    assert images.flags.writeable
    assert converted.errors == [""] * 4


@pytest.mark.parametrize("bad", [-0.1, 1.1, np.nan, np.inf])
def test_float_images_out_of_range(bad):
    rows = PIXELS / 255
    rows[2, 1, 1, 1] = bad
    converted = rows_from_array(rows)
    assert converted.errors == ["", "", "pixels outside 0 to 1", ""]
    assert not converted.inputs[2].any()
    assert np.array_equal(converted.inputs[[0, 1, 3]], PIXELS[[0, 1, 3]])


def test_whole_number_images_out_of_range():
    rows = PIXELS.astype(np.int32)
    rows[0, 0, 0, 0], rows[1, 0, 0, 0] = -1, 256
    assert rows_from_array(rows).errors == ["pixels outside 0 to 255"] * 2 + ["", ""]


def test_tables():
    rows = np.array([[1, 2.5], [np.nan, 1], [0, 1e300], [np.inf, np.inf]])
    converted = rows_from_array(rows, labels="abcd")
    errors = converted.errors
    assert converted.exact is rows
    assert converted.labels == "abcd"
    assert converted.inputs.dtype == np.float32
    assert converted.inputs.tolist() == [[1, 2.5], [0, 0], [0, 0], [0, 0]]
    assert errors[0] == ""
    assert errors[1:] == [f"column {c} is not a finite number ({v})" for c, v in ((0, "nan"), (1, "1e+300"), (0, "inf"))]


@pytest.mark.parametrize(
    "rows",
    [
        np.zeros(3),
        np.zeros((3, 5, 6, 4)),
        np.zeros((3, 3, 6, 3)),
        np.zeros((3, 1, 2, 3, 4)),
        np.array([["a", "b"]]),
        np.array([[1j]]),
    ],
)
def test_other_arrays_are_refused(rows):
    with pytest.raises(InputError, match="an array of"):
        rows_from_array(rows)


@given(st.lists(st.integers(-20, 20) | st.text("abc", min_size=1), min_size=1))
def test_labels_stand_for_the_values_they_came_from(values):
    labels, names = encode_labels(values, "made up")
    assert [names[label] for label in labels] == [str(value) for value in values]
    assert len(set(names)) == len(names)


def test_integers_are_sorted_by_value_and_words_as_text():
    assert encode_labels(["10", "9", "-1"], "x")[1] == ("-1", "9", "10")
    assert encode_labels([10, 9, -1], "x")[1] == ("-1", "9", "10")
    assert encode_labels(["b10", "b9", "a"], "x")[1] == ("a", "b10", "b9")
    assert encode_labels([2.0, 1.0], "x")[1] == ("1", "2")
    assert encode_labels([" cat", "cat "], "x")[1] == ("cat",)
    assert encode_labels([1], "x")[0].dtype == np.int64


@pytest.mark.parametrize(
    ("value", "words"),
    [(None, "the label is missing"), ("  ", "the label is missing"), (0.5, "label 0.5 is not a class"), (float("nan"), "nan")],
)
def test_bad_labels_are_named_with_their_row(value, words):
    with pytest.raises(DataError, match=words) as caught:
        encode_labels(["a", value], "table.csv")
    assert "table.csv, row 1" in str(caught.value)


TIMES = 1.7e9 + np.arange(400.0)


def rounding_of(*blocks):
    rounding = Rounding()
    for block in blocks:
        rounding.add(block)
    return rounding


def is_lost(column):
    """The rule for a whole column: float32 is off by over 0.3 % of the range."""
    with np.errstate(over="ignore"):
        error = np.abs(column - column.astype(np.float32)).max()
    spread = column.max() - column.min()
    return bool((error > 0.003 * spread and spread > 1e-12 * np.abs(column).max()) or np.isinf(error))


@given(st.integers(0, 2**31), st.integers(-20, 45), st.integers(-14, 0), st.integers(1, 50))
def test_the_result_does_not_depend_on_the_blocks(seed, size, share, cut):
    column = 10.0**size * (1 + 10.0**share * np.random.default_rng(seed).normal(size=(60, 1)))
    whole, cut_up = rounding_of(column).loss(), rounding_of(column[:0], column[:cut], column[cut:]).loss()
    assert bool(whole) == bool(cut_up) == is_lost(column[:, 0])


def test_the_column_is_named_with_its_size_and_its_spread():
    table = np.column_stack([np.zeros(400), TIMES])
    extent = "reaches 1.7e+09 and varies by 399, which float32 does not hold: standardise it first"
    assert rounding_of(table).loss() == f"column 1 {extent}"
    assert rounding_of(table[:7], table[7:]).loss(("size", "time")) == f"column 'time' {extent}"


@pytest.mark.parametrize(
    "column",
    [
        TIMES - TIMES.mean(),
        TIMES.astype(np.float32),  # nothing is lost of it here
        np.arange(2**24 - 400, 2**24),  # whole numbers that float32 has
        np.full(400, 0.1),
        0.3 + 1e-16 * (np.arange(400) % 2),  # constant, but for rounding
        np.array([1e30] + 399 * [0.1]),  # an outlier makes the spread large
    ],
    ids=["centred", "float32", "whole", "constant", "rounding", "outlier"],
)
def test_columns_that_float32_holds(column):
    assert rounding_of(column[:, None]).loss() == ""


def test_a_column_that_is_too_large():
    assert rounding_of(np.geomspace(1e59, 1e60, 5)[:, None]).loss().startswith("column 0 reaches 1e+60")


def test_an_empty_table_loses_nothing():
    assert rounding_of().loss() == rounding_of(np.zeros((0, 3))).loss() == ""


def test_rows_of_small_blocks_are_copied_once(monkeypatch):
    copied = []
    concatenate = np.concatenate
    monkeypatch.setattr(np, "concatenate", lambda parts: copied.append(sum(map(len, parts))) or concatenate(parts))
    blocks = [rows_from_array(np.full((2, 3), number)) for number in range(500)]
    batches = list(numbered_batches(iter(blocks), 300, start=7))
    assert [len(batch.ids) for batch in batches] == [300, 300, 300, 100]
    assert [batch.ids[0] for batch in batches] == ["7", "307", "607", "907"]
    assert concatenate([batch.inputs for batch in batches])[:, 0].tolist() == [row // 2 for row in range(1000)]
    assert sum(copied) <= 1000
