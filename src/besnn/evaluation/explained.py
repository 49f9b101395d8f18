"""Explanations as pictures and tables: for the page of `besnn score --explain`, and for the report."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from besnn.evaluation.plots import image_grid
from besnn.evaluation.report import render_page
from besnn.evaluation.style import as_data_uri
from besnn.storage.files import whole_file

SIDE = 64
"""Pixels of a picture's side."""
SHOWN_COLUMNS = 5


@dataclass(frozen=True, eq=False)
class Explained:
    """Why one input was decided as it was.

    Args:
        name: of the input, such as its file name.
        decision: in words, such as `unknown` or `unsure: Shirt or Coat`.
        value: an image ``[c, h, w]`` or a row ``[d]``.
        neighbours: the nearest training examples, of the same kind; images may be smaller.
        classes: the class of each.
        distances: how far each is.
        surprise: −log p by part of the score.
        members: the label of each member.
        heat: how much each place of an image adds to the score, ``[h, w]``.
        columns: the names of a row's columns, and each one's standard deviation in training.
    """

    name: str
    decision: str
    value: npt.NDArray[Any]
    neighbours: npt.NDArray[Any]
    classes: Sequence[str]
    distances: Sequence[float]
    surprise: Mapping[str, float]
    members: Sequence[str]
    heat: npt.NDArray[np.float32] | None = None
    columns: Sequence[tuple[str, float]] = ()


def write_explanations(explained: Sequence[Explained], path: Path, title: str, more: int = 0) -> None:
    """Write a page with one section per input; `more` inputs are counted but not shown."""
    page = render_page("explained.html.j2", title=title, cards=[card(each) for each in explained], more=more)
    with whole_file(path) as partial:
        partial.write_text(page, encoding="utf-8")


def card(explained: Explained) -> dict[str, object]:
    """Return what the template `why.html.j2` shows about one input."""
    agree = len(set(explained.members)) == 1
    opinions = f"all agree on {explained.members[0]}" if agree else ", ".join(explained.members)
    return {
        "name": explained.name,
        "decision": explained.decision,
        "surprise": [
            {"part": part, "nats": value, "share": np.exp(-value)}
            for part, value in sorted(explained.surprise.items(), key=lambda item: -item[1])
        ],
        "members": opinions if len(explained.members) > 1 else "",
        "picture": _picture(explained) if explained.value.ndim == 3 else "",
        "columns": [] if explained.value.ndim == 3 else differing_columns(explained),
    }


def differing_columns(explained: Explained, count: int = SHOWN_COLUMNS) -> list[dict[str, object]]:
    """Return the columns in which a row differs most from its nearest training row, in standard deviations of training."""
    if not len(explained.neighbours):
        return []
    nearest = explained.neighbours[0]
    steps = np.abs(explained.value - nearest) / np.array([std for _, std in explained.columns])
    return [
        {
            "column": explained.columns[place][0],
            "value": float(explained.value[place]),
            "nearest": float(nearest[place]),
            "deviations": float(steps[place]),
        }
        for place in np.argsort(-steps, kind="stable")[:count]
    ]


def _picture(explained: Explained) -> str:
    """Draw the image, its heat map if there is one, and its neighbours, side by side."""
    shown = [(_square(explained.value), "this input")]
    if explained.heat is not None:
        shown.append((_square(heated(explained.value, explained.heat)), "strange in red"))
    pairs = zip(explained.neighbours, explained.classes, explained.distances, strict=True)
    shown += [(_square(image), f"{name}\ndistance {distance:.3f}") for image, name, distance in pairs]
    images, captions = zip(*shown, strict=True)
    return as_data_uri(image_grid(np.stack(images), captions))


def heated(image: npt.NDArray[Any], heat: npt.NDArray[np.float32]) -> npt.NDArray[np.uint8]:
    """Colour an image ``[c, h, w]`` red where it adds to the score, as RGB; what lowers the score stays grey."""
    grey = image.astype(np.float64).mean(axis=0)
    share = np.clip(heat, 0, None) / max(float(heat.max()), 1e-12)
    colour = np.array([230.0, 60.0, 0.0])[:, None, None]
    mixed: npt.NDArray[np.uint8] = ((1 - 0.75 * share) * (0.7 * grey) + 0.75 * share * colour).round().astype(np.uint8)
    return mixed


def _square(image: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """Return an image as RGB of one size."""
    channels = image if image.shape[0] == 3 else np.repeat(image.astype(np.float64).mean(axis=0, keepdims=True), 3, axis=0)
    picture = Image.fromarray(channels.transpose(1, 2, 0).round().astype(np.uint8))
    return np.asarray(picture.resize((SIDE, SIDE), Image.Resampling.NEAREST)).transpose(2, 0, 1)
