import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from besnn.data.labels import encode_labels
from besnn.errors import DataError


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
