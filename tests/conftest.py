"""What tests of several packages share: the real data sets, a training run of one second, a folder of images."""

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings
from PIL import Image

from besnn.data import Dataset, two_moons
from besnn.training import Recipe, parse_recipe
from tests.real_data import lay_out

settings.register_profile("quick", deadline=None, max_examples=50)  # the first example of a test pays for imports
settings.load_profile("quick")

COMPACT_DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
UNMEASURED = [Path(__file__).with_name(name) for name in ("experiments", "benchmarks")]
"""Tests of code whose coverage is not measured: tracing what it calls would only take time."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if any(item.path.is_relative_to(folder) for folder in UNMEASURED):
            item.add_marker("no_cover")


@pytest.fixture(scope="session")
def real_data_dir() -> Path:
    """A folder with the official files: $BESNN_DATA, else laid out once from the compact copies beside the repository."""
    if named := os.environ.get("BESNN_DATA"):
        return Path(named)
    if not COMPACT_DATA.is_dir():
        pytest.skip("needs the real data sets: set BESNN_DATA to a folder that holds them")
    target = Path(tempfile.gettempdir()) / "besnn-data"
    if not target.is_dir():
        unfinished = Path(tempfile.mkdtemp(prefix="besnn-data-"))
        lay_out(COMPACT_DATA, unfinished)
        try:
            unfinished.rename(target)  # whole or not at all: several processes may do this at once
        except OSError:
            shutil.rmtree(unfinished)
    return target


@pytest.fixture(scope="session")
def tiny_recipe() -> Callable[..., Recipe]:
    """A recipe of a few dozen quick steps, with overrides such as `training.epochs=5`."""
    content = {
        "name": "tiny",
        "data": {"source": "two-moons", "validation": 0.2, "calibration": 0.2},
        "backbone": {"hidden": [8], "feature_dim": 4},
        "method": {"name": "be-snn", "members": 2, "noise_dim": 4, "hidden_dim": 8, "samples": 8},
        "training": {"epochs": 3, "batch_size": 16},
        "score": {"name": "method"},
    }
    return lambda *overrides: parse_recipe(content, overrides)


@pytest.fixture(scope="session")
def moons() -> Dataset:
    """160 points, which a tiny recipe splits into 96, 32 and 32."""
    return two_moons(160)


@pytest.fixture(scope="session")
def stripes() -> Dataset:
    """64 images 8x8 of two classes: horizontal or vertical stripes, with noise."""
    rng = np.random.default_rng(0)
    labels = np.arange(64) % 2
    pattern = np.indices((8, 8)) % 2 * 200  # [direction, row, column]
    images = pattern[labels][:, None] + rng.integers(0, 50, (64, 1, 8, 8))
    return Dataset(images.astype(np.uint8), labels, ("flat", "upright"), "stripes")


@pytest.fixture(scope="session")
def stripe_folder(stripes: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The stripes as PNG files, one sub-folder per class."""
    root = tmp_path_factory.mktemp("stripes")
    assert stripes.labels is not None
    for row, (image, label) in enumerate(zip(stripes.inputs, stripes.labels, strict=True)):
        folder = root / stripes.class_names[label]
        folder.mkdir(exist_ok=True)
        Image.fromarray(image[0]).save(folder / f"{row:02}.png")
    return root
