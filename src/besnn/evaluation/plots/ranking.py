"""Pictures of how scores separate known from unknown inputs: ROC and precision-recall curves, histograms with τ."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure

from besnn.errors import InputError
from besnn.evaluation.arrays import FloatArray, as_scores
from besnn.evaluation.metrics import precision_recall_points, roc_points
from besnn.evaluation.plots.style import (
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


@house_style()
def roc_curves(in_scores: npt.ArrayLike, out_scores: Mapping[str, npt.ArrayLike]) -> Figure:
    """ROC curve of each OOD set: the share of unknown inputs caught against the share of known inputs flagged.

    >>> roc_curves([0.1, 0.2], {"noise": [0.3, 0.4]}).axes[0].get_legend().get_texts()[0].get_text()
    'noise'
    """
    figure = new_figure(4.2, 3.8)
    axes = figure.add_subplot()
    axes.plot([0, 1], [0, 1], color=GUIDE_COLOUR, linewidth=0.8, linestyle="dotted")
    for index, (name, scores) in enumerate(_checked(out_scores).items()):
        axes.plot(*roc_points(in_scores, scores), **_line(name, index))
    set_percent_axes(axes, "known inputs flagged", "unknown inputs caught")
    axes.legend(loc="lower right")
    return figure


@house_style()
def precision_recall_curves(in_scores: npt.ArrayLike, out_scores: Mapping[str, npt.ArrayLike]) -> Figure:
    """Precision-recall curve of each OOD set, unknown inputs being the positive class.

    >>> precision_recall_curves([0.1, 0.2], {"noise": [0.3, 0.4]}).axes[0].get_ylabel()
    'flagged inputs that are unknown'
    """
    figure = new_figure(4.2, 3.8)
    axes = figure.add_subplot()
    for index, (name, scores) in enumerate(_checked(out_scores).items()):
        axes.plot(*precision_recall_points(in_scores, scores), **_line(name, index))
    set_percent_axes(axes, "unknown inputs caught", "flagged inputs that are unknown")
    axes.legend(loc="lower left")
    return figure


@house_style()
def score_histograms(
    in_scores: npt.ArrayLike,
    out_scores: Mapping[str, npt.ArrayLike],
    threshold: float,
    score_name: str = "score",
    bins: int = 40,
) -> Figure:
    """One panel an OOD set: how known and unknown scores are spread, with τ drawn; same axes in every panel.

    Infinite scores are drawn in the outermost bins.

    >>> len(score_histograms([0.1, 0.2], {"noise": [0.3, 0.4], "other": [0.9]}, threshold=0.25).axes)
    2
    """
    known = as_scores(in_scores, "in_scores")
    unknown = _checked(out_scores)
    edges = _common_edges([known, *unknown.values()], bins)
    columns = min(len(unknown), _MAX_COLUMNS)
    rows = math.ceil(len(unknown) / columns)
    figure = new_figure(max(2.9 * columns, 4.2), 2.6 * rows)
    panels = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).ravel()
    for index, (name, scores) in enumerate(unknown.items()):
        axes, colour = panels[index], UNKNOWN_COLOURS[index % len(UNKNOWN_COLOURS)]
        axes.stairs(_shares(known, edges), edges, fill=True, color=KNOWN_COLOUR, alpha=0.45, label="known")
        axes.stairs(_shares(scores, edges), edges, color=colour, linewidth=1.6, label="unknown")
        axes.axvline(threshold, color="black", linewidth=1.2, linestyle="dashed", label=f"τ = {threshold:.3g}")
        axes.set_title(shortened(name, _MAX_NAME_LENGTH))
        axes.set_xlabel(score_name)
        axes.yaxis.set_major_formatter(lambda share, _: f"{100 * share:.0f} %")
        axes.legend()
    for axes in panels[::columns]:
        axes.set_ylabel("share of inputs")
    for axes in panels[len(unknown) :]:
        axes.set_visible(False)
    return figure


def _checked(out_scores: Mapping[str, npt.ArrayLike]) -> dict[str, FloatArray]:
    if not out_scores:
        raise InputError("no OOD set to draw: give a mapping of its name to its scores")
    return {name: as_scores(scores, f"scores of {name!r}") for name, scores in out_scores.items()}


def _line(name: str, index: int) -> dict[str, Any]:
    label = shortened(name, _MAX_NAME_LENGTH)
    return {
        "label": f" {label}" if label.startswith("_") else label,  # matplotlib hides labels that begin with _
        "color": UNKNOWN_COLOURS[index % len(UNKNOWN_COLOURS)],
        "linestyle": LINE_STYLES[index % len(LINE_STYLES)],
    }


def _common_edges(samples: list[FloatArray], bins: int) -> FloatArray:
    every = np.concatenate(samples)
    finite = every[np.isfinite(every)]
    edges: FloatArray = np.histogram_bin_edges(finite, bins)
    return edges


def _shares(scores: FloatArray, edges: FloatArray) -> FloatArray:
    return np.histogram(np.clip(scores, edges[0], edges[-1]), edges)[0] / scores.size
