"""The page of a triage: each group's examples and size, and a field to name it; the names go into `groups.yaml`."""

import base64
import hashlib
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from besnn.data import Dataset
from besnn.evaluation.plots import image_grid
from besnn.evaluation.report import render_page
from besnn.evaluation.style import as_data_uri
from besnn.storage.files import whole_file
from besnn.triage.groups import FALSE_ALARM, JUNK, NAMES, Triage

PAGE = "index.html"
SHOWN = 12
_SHOWN_COLUMNS = 8


def write_page(triage: Triage, folder: Path, inputs: Dataset, names: Sequence[str], class_names: Sequence[str]) -> Path:
    """Write the page as one HTML file beside the groups; return its path.

    >>> import tempfile
    >>> from besnn.triage import Group
    >>> points = Dataset(np.zeros((2, 3), np.float32), None, (), name="points")
    >>> triage = Triage({"group-1": Group(np.array([0, 1]), nearest_class="cat")}, single=np.array([], np.int64))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     print(write_page(triage, Path(folder), points, names=["a", "b"], class_names=["cat"]).name)
    index.html
    """
    script = (resources.files("besnn.evaluation") / "templates" / "triage.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    page = render_page(
        "triage.html.j2",
        inputs=inputs.name,
        total=len(inputs),
        flagged=len(triage.single) + sum(len(group.rows) for group in triage.groups.values()),
        single=len(triage.single),
        groups=[
            {
                "key": key,
                "group": group,
                "examples": _examples(inputs, names, group.rows[:SHOWN]),
                "similar": _similar(inputs, names, group.similar) if len(group.similar) else None,
            }
            for key, group in triage.groups.items()
        ],
        suggestions=[*class_names, FALSE_ALARM, JUNK],
        file=NAMES,
        script=script,
        digest=digest,
    )
    with whole_file(folder / PAGE) as partial:
        partial.write_text(page, encoding="utf-8")
    return folder / PAGE


def _similar(inputs: Dataset, names: Sequence[str], rows: NDArray[np.int64]) -> dict[str, object]:
    """Show some of the rows, evenly from the first to the last, each with its place among them."""
    places = np.linspace(0, len(rows) - 1, min(SHOWN, len(rows))).round().astype(int)
    shown = np.take(rows, places)
    captions = {row: f"{place + 1}: {names[row]}" for place, row in zip(places, shown, strict=True)}
    return _examples(inputs, captions, shown)


def _examples(inputs: Dataset, names: Sequence[str] | Mapping[int, str], rows: NDArray[np.int64]) -> dict[str, object]:
    if inputs.is_image:
        return {"picture": as_data_uri(image_grid(inputs.inputs[rows], [names[row] for row in rows])), "header": [], "rows": []}
    columns = list(inputs.feature_names or (f"column {place + 1}" for place in range(inputs.inputs.shape[1])))
    cells = [[names[row], *(f"{value:.4g}" for value in inputs.inputs[row, :_SHOWN_COLUMNS])] for row in rows]
    return {"picture": "", "header": ["input", *columns[:_SHOWN_COLUMNS]], "rows": cells}
