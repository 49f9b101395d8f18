"""Pictures of the class predictions: the reliability diagram and the confusion matrix."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure

from besnn.errors import InputError
from besnn.evaluation.classification import CalibrationBins
from besnn.evaluation.plots.style import (
    GUIDE_COLOUR,
    KNOWN_COLOUR,
    UNKNOWN_COLOURS,
    house_style,
    new_figure,
    set_percent_axes,
    shortened,
)

_MAX_NAMED_CLASSES = 40
_MAX_NUMBERED_CLASSES = 20


@house_style()
def reliability_diagram(bins: CalibrationBins) -> Figure:
    """Accuracy against confidence, with the share of inputs in each bin beneath.

    >>> from besnn.evaluation import calibration_bins
    >>> len(reliability_diagram(calibration_bins([0, 1], [[0.9, 0.1], [0.2, 0.8]])).axes)
    2
    """
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
    """Confusion matrix ``[classes, classes]``, row = true class, shaded by the share of its row.

    >>> confusion_heat_map([[9, 1], [0, 10]], ["cat", "dog"]).axes[0].get_xlabel()
    'predicted class'
    """
    matrix = np.asarray(counts)
    classes = len(class_names)
    if matrix.shape != (classes, classes):
        raise InputError(f"confusion matrix of shape {list(matrix.shape)} for {classes} class names: give one a class")
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
