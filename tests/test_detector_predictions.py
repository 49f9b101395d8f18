import numpy as np

from besnn.detector import Prediction, Predictions

TWO = Predictions(
    labels=np.array(["cat", "dog"]),
    indices=np.array([0, 1]),
    probabilities=np.array([[0.75, 0.25], [0.125, 0.875]], np.float32),
    score=np.array([0.5, 2.0], np.float32),
    p_value=np.array([0.25, 0.01]),
    is_ood=np.array([False, True]),
    member_labels=np.array([[0, 1], [0, 0]]),
    member_probabilities=np.array([[0.5, 0.75], [0.75, 0.5]], np.float32),
)


def test_one_row_per_input():
    assert len(TWO) == 2
    assert list(TWO) == [Prediction("cat", 0.75, 0.5, 0.25, False), Prediction("dog", 0.875, 2.0, 0.01, True)]


def test_rows_are_plain_python():
    for row in TWO:
        assert [type(value) for value in row] == [str, float, float, float, bool]


def test_some_of_the_rows():
    second = TWO[1:]
    assert list(second) == list(TWO)[1:]
    assert second.member_labels.tolist() == [[1], [0]]
    assert second.member_probabilities.tolist() == [[0.75], [0.5]]
    assert second.indices.tolist() == [1]


def test_empty_predictions():
    assert len(TWO[:0]) == 0
    assert list(TWO[:0]) == []
