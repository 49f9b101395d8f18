"""One style for all figures, readable in print and for colour-blind readers.

Figures use matplotlib's objects directly; pyplot and its global state are never touched. The settings apply only inside
`house_style`, which wraps drawing and saving.
"""

import base64
import io
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from besnn.errors import InputError
from besnn.storage.files import whole_file

# Okabe & Ito's palette, which colour-blind readers can tell apart; known inputs are always blue.
KNOWN_COLOUR = "#0072B2"
UNKNOWN_COLOURS = ("#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
LINE_STYLES = ("solid", "dashed", "dashdot", "dotted", (0, (5, 1, 1, 1, 1, 1)))  # distinct without colour too
GUIDE_COLOUR = "#767676"

_FORMATS = (".png", ".svg", ".pdf")
_SETTINGS: dict[Any, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#444444",
    "axes.linewidth": 0.8,
    "axes.grid": False,
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "lines.linewidth": 1.8,
    "text.parse_math": False,  # class and file names are data: a $ in them is a $
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "besnn",  # the same figure gives the same bytes
    "figure.facecolor": "white",
    "savefig.dpi": 200,
}


@contextmanager
def house_style() -> Iterator[None]:
    """Use the style's settings inside the block or the decorated function."""
    with matplotlib.rc_context(_SETTINGS), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")  # a browser has more fonts
        yield


def new_figure(width: float, height: float, layout: Literal["constrained", "compressed"] = "constrained") -> Figure:
    """Return an empty figure of a size in inches, on a canvas without a display; "compressed" is for axes of fixed aspect."""
    figure = Figure(figsize=(width, height), layout=layout)
    FigureCanvasAgg(figure)
    return figure


def shortened(text: str, length: int) -> str:
    """Shorten a text in the middle, so that the end, which distinguishes file names, is kept.

    >>> shortened("images/2024/coat-0001.png", 14), shortened("coat", 14)
    ('images…001.png', 'coat')
    """
    head, tail = (length - 1) // 2, length - 1 - (length - 1) // 2
    return text if len(text) <= length else f"{text[:head]}…{text[-tail:]}"


def set_percent_axes(axes: Axes, xlabel: str, ylabel: str) -> None:
    """Set both axes to 0 to 1, marked in percent, with a grid."""
    ticks = [0, 0.2, 0.4, 0.6, 0.8, 1]
    labels = [f"{100 * tick:.0f} %" for tick in ticks]
    axes.set(xlim=(-0.01, 1.01), ylim=(-0.01, 1.01), xlabel=xlabel, ylabel=ylabel)  # a curve on the border shows
    axes.set_xticks(ticks, labels)
    axes.set_yticks(ticks, labels)
    axes.grid(True)


@house_style()
def save_figure(figure: Figure, path: str | os.PathLike[str]) -> Path:
    """Write a figure as PNG, SVG or PDF, by the file's extension; return the path."""
    target = Path(path)
    if target.suffix not in _FORMATS:
        raise InputError(f"figure file {target.name!r}: end its name in one of {', '.join(_FORMATS)}")
    with whole_file(target) as partial:
        figure.savefig(partial)
    return target


@house_style()
def as_data_uri(figure: Figure) -> str:
    """Encode a figure as an SVG ``data:`` URI, for self-contained pages."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None})
    return "data:image/svg+xml;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")
