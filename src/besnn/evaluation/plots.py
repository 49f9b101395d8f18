"""Figures of an evaluation, as matplotlib `Figure` objects in one style."""

import math
from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from besnn.checks import as_numpy, check_same_length
from besnn.errors import InputError
from besnn.evaluation.checks import FloatArray, as_scores
from besnn.evaluation.classification import CalibrationBins
from besnn.evaluation.metrics import precision_recall_points, roc_points
from besnn.evaluation.plane import Plane, as_points
from besnn.evaluation.style import (
    GUIDE_COLOUR,
    KNOWN_COLOUR,
    LINE_STYLES,
    UNKNOWN_COLOURS,
    house_style,
    new_figure,
    set_percent_axes,
    shortened,
)

_MAX_COLUMNS = 3
_MAX_NAME_LENGTH = 28
_MAX_NAMED_CLASSES = 40
_MAX_NUMBERED_CLASSES = 20
_IMAGES_PER_ROW = 6
_MAX_CAPTION_WIDTH = 20  # characters that fit below an image
_BORDER = 0.5  # the confidence of the white line
_CLASS_COLOURS = ("#ffffff", "#111111", "#D55E00", "#CC79A7")
_CLASS_MARKERS = ("o", "^", "s", "D")


@house_style()
def roc_curves(in_scores: npt.ArrayLike, out_scores: Mapping[str, npt.ArrayLike]) -> Figure:
    """Draw the ROC curve of each OOD set: the share of unknown inputs caught against the share of known inputs flagged."""
    figure = _curves({name: roc_points(in_scores, scores) for name, scores in _checked(out_scores).items()})
    (axes,) = figure.axes
    axes.plot([0, 1], [0, 1], color=GUIDE_COLOUR, linewidth=0.8, linestyle="dotted", zorder=1)
    set_percent_axes(axes, "known inputs flagged", "unknown inputs caught")
    axes.legend(loc="lower right")
    return figure


@house_style()
def precision_recall_curves(in_scores: npt.ArrayLike, out_scores: Mapping[str, npt.ArrayLike]) -> Figure:
    """Draw the precision-recall curve of each OOD set, with unknown inputs as the positive class."""
    curves = {name: precision_recall_points(in_scores, scores) for name, scores in _checked(out_scores).items()}
    figure = _curves(curves)
    (axes,) = figure.axes
    set_percent_axes(axes, "unknown inputs caught", "flagged inputs that are unknown")
    axes.legend(loc="lower left")
    return figure


def _curves(curves: Mapping[str, tuple[FloatArray, FloatArray]]) -> Figure:
    figure = new_figure(4.2, 3.8)
    axes = figure.add_subplot()
    for (name, points), colour, style in zip(curves.items(), cycle(UNKNOWN_COLOURS), cycle(LINE_STYLES), strict=False):
        axes.plot(*points, label=_label(name), color=colour, linestyle=style)
    return figure


@house_style()
def score_histograms(
    in_scores: npt.ArrayLike,
    out_scores: Mapping[str, npt.ArrayLike],
    threshold: float,
    score_name: str = "score",
    bins: int = 40,
) -> Figure:
    """Draw histograms of known and unknown scores and τ, one panel per OOD set; infinite scores are in the outermost bins."""
    known = as_scores(in_scores, "in_scores")
    unknown = _checked(out_scores)
    every = np.concatenate([known, *unknown.values()])
    edges = np.histogram_bin_edges(every[np.isfinite(every)], bins)
    columns = min(len(unknown), _MAX_COLUMNS)
    rows = math.ceil(len(unknown) / columns)
    figure = new_figure(max(2.9 * columns, 4.2), 2.6 * rows + 0.4)
    panels = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).ravel()
    keys: dict[str, Artist] = {}
    for index, (name, scores) in enumerate(unknown.items()):
        axes, colour = panels[index], UNKNOWN_COLOURS[index % len(UNKNOWN_COLOURS)]
        filled = axes.stairs(_shares(known, edges), edges, fill=True, color=KNOWN_COLOUR, alpha=0.45, label="known")
        outline = axes.stairs(_shares(scores, edges), edges, color=colour, linewidth=1.6, label=_label(name))
        line = axes.axvline(threshold, color="black", linewidth=1.2, linestyle="dashed", label=f"τ = {threshold:.3g}")
        keys = {**keys, "known": filled, "τ": line, f"set {index}": outline}
        axes.set_title(shortened(name, _MAX_NAME_LENGTH))
        axes.set_xlabel(score_name)
        axes.yaxis.set_major_formatter(lambda share, _: f"{100 * share:.0f} %")
    figure.legend(handles=list(keys.values()), loc="outside lower center", ncols=columns + 2)  # never over τ
    for axes in panels[::columns]:
        axes.set_ylabel("share of inputs")
    for axes in panels[len(unknown) :]:
        axes.set_visible(False)
    return figure


def _checked(out_scores: Mapping[str, npt.ArrayLike]) -> dict[str, FloatArray]:
    if not out_scores:
        raise InputError("no OOD set to draw: give a mapping of set names to scores")
    return {name: as_scores(scores, f"scores of {name!r}") for name, scores in out_scores.items()}


def _label(name: str) -> str:
    label = shortened(name, _MAX_NAME_LENGTH)
    return f" {label}" if label.startswith("_") else label  # matplotlib hides labels that begin with _


def _shares(scores: FloatArray, edges: FloatArray) -> FloatArray:
    return np.histogram(np.clip(scores, edges[0], edges[-1]), edges)[0] / scores.size


@house_style()
def reliability_diagram(bins: CalibrationBins) -> Figure:
    """Draw accuracy against confidence, and below it the share of inputs in each bin."""
    figure = new_figure(4.2, 4.6)
    upper, lower = figure.subplots(2, 1, height_ratios=[3.4, 1])
    left, right = bins.edges[:-1], bins.edges[1:]
    bars: dict[str, Any] = {"align": "edge", "width": right - left, "edgecolor": "white", "linewidth": 0.6}
    upper.bar(left, np.nan_to_num(bins.accuracy), color=KNOWN_COLOUR, alpha=0.5, label="accuracy", **bars)
    upper.hlines(bins.confidence, left, right, color=UNKNOWN_COLOURS[0], linewidth=2.2, label="mean confidence")
    upper.plot([0, 1], [0, 1], color=GUIDE_COLOUR, linewidth=0.8, linestyle="dotted", label="equal")
    set_percent_axes(upper, "", "accuracy")
    upper.legend(loc="lower left", bbox_to_anchor=(-0.02, 1.0), ncols=3)
    lower.bar(left, bins.counts / bins.counts.sum(), color=GUIDE_COLOUR, **bars)
    set_percent_axes(lower, "confidence", "inputs")
    lower.set_yticks([0, 0.5, 1], ["0 %", "50 %", "100 %"])
    return figure


@house_style()
def confusion_heat_map(counts: npt.ArrayLike, class_names: Sequence[str]) -> Figure:
    """Draw a confusion matrix ``[classes, classes]``, row = true class, shaded by the share of its row."""
    matrix = np.asarray(counts)
    classes = len(class_names)
    if matrix.shape != (classes, classes):
        raise InputError(f"confusion matrix of shape {list(matrix.shape)} for {classes} class names: give one name per class")
    shares = matrix / np.maximum(matrix.sum(axis=1, keepdims=True), 1)
    side = float(np.clip(0.42 * classes + 1.6, 3.4, 7.0))
    figure = new_figure(side + 0.7, side)
    axes = figure.add_subplot()
    image = axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    axes.set(xlabel="predicted class", ylabel="true class")
    axes.spines[:].set_visible(False)
    if classes <= _MAX_NAMED_CLASSES:
        names = [shortened(name, 16) for name in class_names]
        long = max(map(len, names)) > 3
        axes.set_xticks(range(classes), names, rotation=45 if long else 0, ha="right" if long else "center")
        axes.set_yticks(range(classes), names)
    if classes <= _MAX_NUMBERED_CLASSES:
        for row, column in np.argwhere(matrix):
            colour = "white" if shares[row, column] > 0.5 else "black"
            axes.text(column, row, f"{matrix[row, column]}", ha="center", va="center", color=colour, fontsize=7.5)
    bar = figure.colorbar(image, ax=axes, shrink=0.8, format=lambda share, _: f"{100 * share:.0f} %")
    bar.set_label("share of the true class")
    bar.outline.set_visible(False)
    return figure


@house_style()
def image_grid(images: npt.ArrayLike, captions: Sequence[str]) -> Figure:
    """Draw images ``[n, c, h, w]`` in rows of six, each with its caption below.

    One channel is drawn in grey, three in colour, any other number as their mean. Bytes are shown unchanged, other values
    are stretched to the range of the image.
    """
    pictures = as_numpy(images, "images")
    if pictures.ndim != 4 or len(pictures) == 0 or len(pictures) != len(captions):
        found = f"images of shape {list(pictures.shape)} with {len(captions)} captions"
        raise InputError(f"{found}: give [n, c, h, w], n ≥ 1, and one caption per image")
    columns = min(len(pictures), _IMAGES_PER_ROW)
    rows = math.ceil(len(pictures) / columns)
    caption_lines = max(caption.count("\n") + 1 for caption in captions)
    figure = new_figure(1.25 * _IMAGES_PER_ROW, rows * (1.15 + 0.14 * caption_lines))
    for index, (picture, caption) in enumerate(zip(pictures, captions, strict=True)):
        axes = figure.add_subplot(rows, _IMAGES_PER_ROW, index // columns * _IMAGES_PER_ROW + index % columns + 1)
        axes.imshow(_displayable(picture), cmap="gray", vmin=0, vmax=255, interpolation="nearest")
        axes.spines[:].set_visible(False)
        axes.set_xticks([])
        axes.set_yticks([])
        lines = [shortened(line, _MAX_CAPTION_WIDTH) for line in caption.splitlines()]
        axes.set_xlabel("\n".join(lines), fontsize=7)
    return figure


def _displayable(picture: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """Return the picture as bytes ``[h, w]`` or ``[h, w, 3]``."""
    channels_last = picture.transpose(1, 2, 0)
    if channels_last.shape[2] != 3:
        channels_last = channels_last.mean(axis=2)
    if picture.dtype == np.uint8:
        return channels_last.astype(np.uint8)
    low, high = np.min(channels_last), np.max(channels_last)
    scale = 255 / (high - low) if high > low else 0.0
    stretched: npt.NDArray[np.uint8] = ((channels_last - low) * scale).astype(np.uint8)
    return stretched


def confidence_map(
    plane: Plane, confidence: npt.ArrayLike, data: npt.ArrayLike, labels: npt.ArrayLike, title: str = ""
) -> Figure:
    """Draw confidence in [0, 1] at ``plane.points``, a white line at 0.5, and on top data ``[n, 2]`` with labels ``[n]``."""
    return confidence_maps(plane, [(title, confidence)], data, labels)


@house_style()
def confidence_maps(
    plane: Plane, panels: Sequence[tuple[str, npt.ArrayLike]], data: npt.ArrayLike, labels: npt.ArrayLike
) -> Figure:
    """Draw several confidence maps, ``(title, confidence)`` each, side by side on one colour scale.

    >>> plane = Plane.around([[0.0, 0.0], [1.0, 1.0]], resolution=3)
    >>> figure = confidence_maps(plane, [("DUQ", [0.5] * 9), ("BE-SNN-1", [0.1] * 9)], [[0.0, 0.0]], [0])
    >>> [axes.get_title("left") for axes in figure.axes]
    ['DUQ', 'BE-SNN-1', '']
    """
    points, classes = as_points(data, "data"), as_numpy(labels, "labels")
    check_same_length(data=points, labels=classes)
    panel_width = 3.1 if len(panels) > 1 else 4.6
    panel_height = float(np.clip(panel_width * np.ptp(plane.ys) / np.ptp(plane.xs), 1.5, 6.0))
    figure = new_figure(panel_width * len(panels) + 0.8, panel_height + 0.6, layout="compressed")
    axes_row = figure.subplots(1, len(panels), sharex=True, sharey=True, squeeze=False)[0]
    for axes, (title, confidence) in zip(axes_row, panels, strict=True):
        grid = plane.as_grid(confidence)
        colours = axes.pcolormesh(plane.xs, plane.ys, grid, cmap="viridis", vmin=0, vmax=1, shading="nearest", rasterized=True)
        if grid.min() < _BORDER < grid.max():
            axes.contour(plane.xs, plane.ys, grid, levels=[_BORDER], colors="white", linewidths=0.8)
        _draw_points(axes, points, classes)
        axes.set_title(title)
        axes.set_aspect("equal")
    bar = figure.colorbar(colours, ax=axes_row, ticks=[0, 0.25, 0.5, 0.75, 1], pad=0.02)
    bar.set_label("confidence")
    return figure


def _draw_points(axes: Axes, points: FloatArray, classes: npt.NDArray[np.integer]) -> None:
    for index, label in enumerate(np.unique(classes)):
        mine = points[classes == label]
        marker, colour = (each[index % len(each)] for each in (_CLASS_MARKERS, _CLASS_COLOURS))
        axes.scatter(mine[:, 0], mine[:, 1], s=9, marker=marker, color=colour, edgecolors="#444444", linewidths=0.4)
