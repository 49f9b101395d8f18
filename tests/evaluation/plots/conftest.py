"""Reading figures back as pixels."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from matplotlib.figure import Figure
from PIL import Image

from besnn.evaluation.plots import save_figure

Pixels = npt.NDArray[np.uint8]


@pytest.fixture
def pixels_of(tmp_path: Path) -> Callable[[Figure], Pixels]:
    """Save a figure as PNG and read it back, ``[height, width, 3]``; a blank one fails here."""

    def read(figure: Figure) -> Pixels:
        path = save_figure(figure, tmp_path / "figure.png")
        with Image.open(path) as image:
            pixels = np.asarray(image.convert("RGB"))
        width, height = figure.get_size_inches()
        assert pixels.shape[:2] == pytest.approx((200 * height, 200 * width), abs=1)
        assert pixels.std() > 5, "the picture is blank"
        return pixels

    return read
