"""The reliability diagram and the confusion matrix."""

import numpy as np
import pytest

from besnn.errors import InputError
from besnn.evaluation import calibration_bins
from besnn.evaluation.plots import confusion_heat_map, reliability_diagram


def test_bars_are_accuracy_and_shares(pixels_of) -> None:
    generator = np.random.default_rng(0)
    bins = calibration_bins(generator.integers(0, 3, 200), generator.dirichlet([1, 1, 1], 200), bins=10)
    figure = reliability_diagram(bins)
    pixels_of(figure)
    upper, lower = figure.axes
    np.testing.assert_allclose([bar.get_height() for bar in upper.patches], np.nan_to_num(bins.accuracy))
    assert sum(bar.get_height() for bar in lower.patches) == pytest.approx(1)


def test_small_matrices_show_counts(pixels_of) -> None:
    counts = np.array([[8, 2, 0], [0, 0, 0], [1, 0, 9]])  # a class without inputs divides by nothing
    figure = confusion_heat_map(counts, ["cat", "dog", "an uncommonly long class name"])
    pixels_of(figure)
    axes = figure.axes[0]
    drawn = {tuple(map(round, text.get_position())): text.get_text() for text in axes.texts}
    assert drawn == {(0, 0): "8", (1, 0): "2", (0, 2): "1", (2, 2): "9"}  # (column, row)
    np.testing.assert_allclose(axes.images[0].get_array(), [[0.8, 0.2, 0], [0, 0, 0], [0.1, 0, 0.9]])
    assert [label.get_text() for label in axes.get_yticklabels()] == ["cat", "dog", "an unco…ass name"]


@pytest.mark.parametrize(("classes", "numbered", "named"), [(20, True, True), (30, False, True), (100, False, False)])
def test_large_matrices_drop_what_cannot_be_read(classes: int, numbered: bool, named: bool, pixels_of) -> None:
    names = [f"c{index}" for index in range(classes)]
    figure = confusion_heat_map(np.eye(classes, dtype=int), names)
    pixels_of(figure)
    assert bool(figure.axes[0].texts) == numbered
    assert ([label.get_text() for label in figure.axes[0].get_xticklabels()] == names) == named


def test_a_name_too_few_is_an_error() -> None:
    with pytest.raises(InputError, match=r"\[2, 2\] for 1 class names"):
        confusion_heat_map([[1, 0], [0, 1]], ["cat"])
