"""Data in the official formats that tests make up, and settings under which a run takes a second."""

import io
import struct
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.io import savemat

from besnn.data import available
from besnn.experiments.runs import Workspace

ROWS = 90
SMALL_TRAINING = ("training.epochs=1", "training.batch_rows=64", "training.precision=fp32", "score.neighbour=3")
SMALL = {
    "fashion-mnist": (*SMALL_TRAINING, "backbone.widths=[4, 8, 8]", "backbone.feature_dim=8"),
    "cifar10": (*SMALL_TRAINING, "backbone.name=convnet", "backbone.hidden=[4, 8]", "backbone.feature_dim=8"),
}


def striped(name: str, size: int, channels: int, rows: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Images `[rows, channels, size, size]` with a bright stripe at a place that tells the class; a shade of its own a set."""
    rng = np.random.default_rng(len(name))
    labels = np.arange(rows) % 10
    images = rng.integers(0, 60 + 10 * len(name), (rows, channels, size, size))
    for row, label in enumerate(labels):
        images[row, :, 2 * label : 2 * label + 3] = 255
    return images.astype(np.uint8), labels


def file_content(path: str, form: str, name: str) -> bytes:
    """A file in one of the official formats."""
    images, labels = striped(name, 28 if form == "idx" else 32, 1 if form == "idx" else 3, ROWS)
    if form == "cifar":
        return b"".join(bytes([label]) + image.tobytes() for image, label in zip(images, labels, strict=True))
    if form == "svhn":
        buffer = io.BytesIO()
        savemat(buffer, {"X": images.transpose(2, 3, 1, 0), "y": np.where(labels == 0, 10, labels)[:, None]})
        return buffer.getvalue()
    values = images[:, 0] if "images" in path else labels.astype(np.uint8)
    return bytes([0, 0, 8, values.ndim]) + struct.pack(f">{values.ndim}I", *values.shape) + values.tobytes()


@pytest.fixture(scope="session")
def made_up_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder with all built-in sets, of 90 images a file."""
    root = tmp_path_factory.mktemp("data")
    for info in available():
        for file in (file for files in info.files.values() for file in files):
            path = root / file.path
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(file_content(file.path, info.format, info.name))
    return root


@pytest.fixture(scope="session")
def small() -> dict[str, tuple[str, ...]]:
    """By in-distribution set, the settings under which a run takes a second."""
    return SMALL


@pytest.fixture(scope="session")
def small_generator() -> tuple[str, ...]:
    """Further settings for a BE-SNN, whose class features would take seconds to freeze."""
    return ("method.noise_dim=8", "method.hidden_dim=8", "method.samples=8")


@pytest.fixture
def workspace(made_up_data: Path, tmp_path: Path) -> Workspace:
    return Workspace(tmp_path / "results", made_up_data, accelerator="cpu")
