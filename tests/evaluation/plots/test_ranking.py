"""Curves and histograms draw the numbers they are given."""

import numpy as np
import pytest

from besnn.errors import InputError
from besnn.evaluation.metrics import precision_recall_points, roc_points
from besnn.evaluation.plots import precision_recall_curves, roc_curves, score_histograms

GENERATOR = np.random.default_rng(0)
KNOWN = GENERATOR.normal(0, 1, 300)
UNKNOWN = {f"set {index}": GENERATOR.normal(index, 1, 200) for index in range(1, 8)}


@pytest.mark.parametrize(("plot", "points"), [(roc_curves, roc_points), (precision_recall_curves, precision_recall_points)])
def test_curves_are_the_metrics(plot, points, pixels_of) -> None:
    figure = plot(KNOWN, UNKNOWN)
    pixels_of(figure)
    lines = {line.get_label(): line for line in figure.axes[0].get_lines()}
    for name, scores in UNKNOWN.items():
        np.testing.assert_array_equal(lines[name].get_xydata().T, points(KNOWN, scores))
    styles = {(lines[name].get_color(), str(lines[name].get_linestyle())) for name in list(UNKNOWN)[:5]}
    assert len(styles) == 5


def test_histograms_show_shares_and_the_threshold(pixels_of) -> None:
    figure = score_histograms(KNOWN, UNKNOWN, threshold=1.25, score_name="entropy", bins=17)
    pixels_of(figure)
    shown = [axes for axes in figure.axes if axes.get_visible()]
    assert [axes.get_title("left") for axes in shown] == list(UNKNOWN)
    for axes, scores in zip(shown, UNKNOWN.values(), strict=True):
        known, unknown = (patch.get_data() for patch in axes.patches)
        for drawn, sample in [(known, KNOWN), (unknown, scores)]:
            for index, edge in enumerate(drawn.edges[:-1]):
                assert drawn.values[index:].sum() == pytest.approx(np.mean(sample >= edge))
        assert axes.get_lines()[0].get_xdata() == [1.25, 1.25]


def test_infinite_scores_land_in_the_outermost_bins(pixels_of) -> None:
    figure = score_histograms([0.0, 1.0, -np.inf], {"far": [np.inf, np.inf, 1.0]}, threshold=0.5, bins=4)
    pixels_of(figure)
    known, far = (patch.get_data().values for patch in figure.axes[0].patches)
    np.testing.assert_allclose(known, [2 / 3, 0, 0, 1 / 3])
    np.testing.assert_allclose(far, [0, 0, 0, 1])


@pytest.mark.parametrize("known", [[0.5, 0.5], [np.inf, np.inf]], ids=["constant", "nothing finite"])
def test_degenerate_scores_can_be_drawn(known: list[float], pixels_of) -> None:
    pixels_of(score_histograms(known, {"same": known}, threshold=0.5))


@pytest.mark.parametrize("plot", [roc_curves, precision_recall_curves, lambda *scores: score_histograms(*scores, 0.5)])
def test_nothing_to_draw_is_an_error(plot) -> None:
    with pytest.raises(InputError, match="no OOD set to draw"):
        plot([0.1], {})
