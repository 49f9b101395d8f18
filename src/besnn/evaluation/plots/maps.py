"""Confidence over the plane, with the data on top: the picture of the paper's Figure 1."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from besnn.evaluation.arrays import FloatArray, as_numpy, check_same_length
from besnn.evaluation.plane import Plane, as_points
from besnn.evaluation.plots.style import house_style, new_figure

_BORDER = 0.5  # the confidence of the white line
_CLASS_COLOURS = ("#ffffff", "#111111", "#D55E00", "#CC79A7")
_CLASS_MARKERS = ("o", "^", "s", "D")


def confidence_map(
    plane: Plane, confidence: npt.ArrayLike, data: npt.ArrayLike, labels: npt.ArrayLike, title: str = ""
) -> Figure:
    """Confidence over a plane: purple is low, yellow is high, a white line at 0.5; one marker a class.

    Args:
        plane: the grid.
        confidence: ``[height · width]``, of each of ``plane.points``, in [0, 1].
        data: ``[n, 2]``, the points to draw on top.
        labels: ``[n]``, their classes.
        title: of the picture.

    >>> plane = Plane.around([[0.0, 0.0], [1.0, 1.0]], resolution=3)
    >>> len(confidence_map(plane, [0.5] * 9, [[0.0, 0.0], [1.0, 1.0]], [0, 1]).axes)
    2
    """
    return confidence_maps(plane, [(title, confidence)], data, labels)


@house_style()
def confidence_maps(
    plane: Plane, panels: Sequence[tuple[str, npt.ArrayLike]], data: npt.ArrayLike, labels: npt.ArrayLike
) -> Figure:
    """Several methods' `confidence_map` side by side, ``(title, confidence)`` each, on one colour scale.

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
        axes.scatter(
            mine[:, 0],
            mine[:, 1],
            s=9,
            marker=_CLASS_MARKERS[index % len(_CLASS_MARKERS)],
            color=_CLASS_COLOURS[index % len(_CLASS_COLOURS)],
            edgecolors="#444444",
            linewidths=0.4,
        )
