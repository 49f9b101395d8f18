"""Figures draw the numbers that they are given."""

import numpy as np
import pytest
import torch
from sklearn.datasets import make_moons

from besnn.errors import InputError
from besnn.evaluation import calibration_bins
from besnn.evaluation.metrics import precision_recall_points, roc_points
from besnn.evaluation.plane import Plane
from besnn.evaluation.plots import (
    confidence_map,
    confidence_maps,
    confusion_heat_map,
    image_grid,
    precision_recall_curves,
    reliability_diagram,
    roc_curves,
    score_histograms,
)

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
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["known", "τ = 1.25", *UNKNOWN]
    drawn = legend.get_window_extent()
    assert not any(drawn.overlaps(axes.get_window_extent()) for axes in shown)  # no legend covers τ


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


def test_a_missing_class_name_is_an_error() -> None:
    with pytest.raises(InputError, match=r"\[2, 2\] for 1 class names"):
        confusion_heat_map([[1, 0], [0, 1]], ["cat"])


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_bytes_are_shown_as_they_are(channels: int, pixels_of) -> None:
    images = np.random.default_rng(0).integers(0, 256, (8, channels, 5, 6), dtype=np.uint8)
    figure = image_grid(images, [f"image {index}" for index in range(8)])
    pixels_of(figure)
    assert [axes.get_xlabel() for axes in figure.axes] == [f"image {index}" for index in range(8)]
    for axes, image in zip(figure.axes, images, strict=True):
        expected = image.transpose(1, 2, 0) if channels == 3 else image.mean(axis=0).astype(np.uint8)
        np.testing.assert_array_equal(axes.images[0].get_array(), expected)
        assert axes.images[0].get_clim() == (0, 255)


def test_other_values_are_stretched(pixels_of) -> None:
    images = np.stack([np.linspace(-3, 5, 16).reshape(1, 4, 4), np.full((1, 4, 4), 0.3)])
    figure = image_grid(images, ["ramp", "flat"])
    pixels_of(figure)
    ramp, flat = (axes.images[0].get_array() for axes in figure.axes)
    assert (ramp.min(), ramp.max(), flat.min(), flat.max()) == (0, 255, 0, 0)


def test_long_caption_lines_are_cut() -> None:
    figure = image_grid(np.zeros((1, 1, 2, 2)), ["a/long/path/to/some/image/of/a/coat.png\nshort"])
    first, second = figure.axes[0].get_xlabel().split("\n")
    assert len(first) <= 20
    assert first.endswith("coat.png")
    assert second == "short"


@pytest.mark.parametrize(("shape", "captions"), [((2, 3, 3), 2), ((0, 1, 3, 3), 0), ((2, 1, 3, 3), 1)])
def test_wrong_shapes_are_named(shape: tuple[int, ...], captions: int) -> None:
    with pytest.raises(InputError, match=f"with {captions} captions"):
        image_grid(np.zeros(shape), ["x"] * captions)


DATA, LABELS = make_moons(60, noise=0.1, random_state=0)
PLANE = Plane.around(DATA, margin=0.5, resolution=40)
FALLING = np.exp(-np.square(PLANE.points - DATA.mean(axis=0)).sum(axis=1))


def test_yellow_in_the_middle_and_purple_at_the_border(pixels_of) -> None:
    figure = confidence_map(PLANE, torch.from_numpy(FALLING), DATA, torch.from_numpy(LABELS), "Two Moons")
    pixels = pixels_of(figure)
    axes = figure.axes[0]
    assert axes.get_title("left") == "Two Moons"
    mesh = axes.collections[0]
    np.testing.assert_allclose(mesh.get_array().reshape(40, 40), PLANE.as_grid(FALLING))
    colours = mesh.get_facecolors().reshape(40, 40, 4)
    middle = np.unravel_index(FALLING.argmax(), (40, 40))
    assert colours[middle][:2].min() > 0.7  # much red and green: yellow
    assert colours[0, 0][:2].max() < 0.35  # little of both: purple
    assert (pixels[..., :2].min(axis=-1) > 200).mean() > 0.05


def test_panels_share_axes_and_colours(pixels_of) -> None:
    figure = confidence_maps(PLANE, [("sure", np.ones(1600)), ("unsure", FALLING)], DATA, LABELS)
    pixels_of(figure)
    sure, unsure, _ = figure.axes
    assert sure.get_xlim() == unsure.get_xlim()
    assert sure.collections[0].get_clim() == unsure.collections[0].get_clim() == (0, 1)
    assert len(unsure.collections) == len(sure.collections) + 1  # the line at 0.5, where there is one


def test_mismatched_labels_are_an_error() -> None:
    with pytest.raises(InputError, match="data 60, labels 2"):
        confidence_map(PLANE, FALLING, DATA, [0, 1])
