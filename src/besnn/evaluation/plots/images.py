"""A grid of small images with captions."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure

from besnn.errors import InputError
from besnn.evaluation.arrays import as_numpy
from besnn.evaluation.plots.style import house_style, new_figure, shortened

_MAX_COLUMNS = 6
_MAX_CAPTION_WIDTH = 20  # characters that fit beneath an image


@house_style()
def image_grid(images: npt.ArrayLike, captions: Sequence[str]) -> Figure:
    """Images ``[n, c, h, w]`` in rows of six, each with its caption beneath.

    One channel is drawn in grey, three in colour, of any other number the mean. Bytes are shown as they are, other
    values stretched from the image's darkest to its brightest.

    >>> len(image_grid(np.zeros((7, 1, 8, 8), dtype=np.uint8), ["zero"] * 7).axes)
    7
    """
    pictures = as_numpy(images, "images")
    if pictures.ndim != 4 or len(pictures) == 0 or len(pictures) != len(captions):
        raise InputError(
            f"images of shape {list(pictures.shape)} with {len(captions)} captions: give [n, c, h, w], n ≥ 1, one caption each"
        )
    columns = min(len(pictures), _MAX_COLUMNS)
    rows = math.ceil(len(pictures) / columns)
    caption_lines = max(caption.count("\n") + 1 for caption in captions)
    figure = new_figure(1.25 * _MAX_COLUMNS, rows * (1.15 + 0.14 * caption_lines))
    for index, (picture, caption) in enumerate(zip(pictures, captions, strict=True)):
        axes = figure.add_subplot(rows, _MAX_COLUMNS, index // columns * _MAX_COLUMNS + index % columns + 1)
        axes.imshow(_displayable(picture), cmap="gray", vmin=0, vmax=255, interpolation="nearest")
        axes.spines[:].set_visible(False)
        axes.set_xticks([])
        axes.set_yticks([])
        lines = [shortened(line, _MAX_CAPTION_WIDTH) for line in caption.splitlines()]
        axes.set_xlabel("\n".join(lines), fontsize=7)
    return figure


def _displayable(picture: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """Bytes ``[h, w]`` or ``[h, w, 3]``."""
    channels_last = picture.transpose(1, 2, 0)
    if channels_last.shape[2] != 3:
        channels_last = channels_last.mean(axis=2)
    if picture.dtype == np.uint8:
        return channels_last.astype(np.uint8)
    low, high = np.min(channels_last), np.max(channels_last)
    scale = 255 / (high - low) if high > low else 0.0
    stretched: npt.NDArray[np.uint8] = ((channels_last - low) * scale).astype(np.uint8)
    return stretched
