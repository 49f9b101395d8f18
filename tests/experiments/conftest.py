"""Data in the official formats that tests make up, settings under which a run takes a second, and made-up records."""

import io
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.io import savemat

from besnn.data import available
from besnn.training.record import write_record
from experiments.runs import Workspace

ROWS = 90
SMALL_TRAINING = ("training.epochs=1", "training.batch_rows=64", "training.precision=fp32", "score.neighbour=3")
SMALL = {
    "fashion-mnist": (*SMALL_TRAINING, "backbone.widths=[4, 8, 8]", "backbone.feature_dim=8"),
    "cifar10": (
        *SMALL_TRAINING,
        "backbone.name=convnet",
        "backbone.hidden=[4, 8]",
        "backbone.feature_dim=8",
        "score.layer=trunk",
    ),
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
    if form == "npz":
        np.savez(buffer := io.BytesIO(), images=images.transpose(0, 2, 3, 1), labels=labels)
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
def tiny_resnet() -> tuple[str, ...]:
    """Settings under which the CIFAR recipe, its own ResNet-18 included, takes a second."""
    return (*SMALL_TRAINING, "training.batch_rows=32", "backbone.width=2", "backbone.feature_dim=8", "data.limit=64")


@pytest.fixture(scope="session")
def small_generator() -> tuple[str, ...]:
    """Further settings for a BE-SNN, whose class features would take seconds to freeze."""
    return ("method.noise_dim=8", "method.hidden_dim=8", "method.samples=8")


@pytest.fixture
def workspace(made_up_data: Path, tmp_path: Path) -> Workspace:
    return Workspace(tmp_path / "results", made_up_data, accelerator="cpu")


def detection_fields(experiment: str, seed: int, **changes: Any) -> dict[str, Any]:
    figures = {
        "auroc": 0.9 + seed / 100,
        "aupr_in": 0.8,
        "aupr_out": 0.7,
        "fpr95": 0.2,
        "fpr95_ood": 0.3,
        "n_in": 9,
        "n_out": 8,
    }
    names = ("tempered-entropy", "softmax-entropy", "smallest-distance", "nearest-neighbour")
    return {
        "experiment": experiment,
        "variant": "",
        "method": "be-snn",
        "in": "fashion-mnist",
        "out": ["mnist"],
        "members": 4,
        "seed": seed,
        "accuracy": 0.92,
        "default_score": "nearest-neighbour",
        "scores": {name: {"mnist": figures} for name in names},
        "parameters": 838_124,
        "seconds": 60.0,
        "recipe": {},
        "provenance": {"data_note": "not-mnist:test: a file is partial: 8 of 9 records"},
    } | changes


def plane_fields(method: str, members: int, seed: int, confidence: float) -> dict[str, Any]:
    rings = [{"inner": 0.0, "outer": 0.5, "mean_confidence": 0.9, "n": 5}]
    rings.append({"inner": 0.5, "outer": 4.0, "mean_confidence": confidence, "n": 7})
    subject = {"experiment": "figure1", "in": "two-moons", "method": method, "members": members, "seed": seed}
    return subject | {"rings": rings, "share_confident": 0.25, "accuracy": 1.0, "parameters": 9, "seconds": 1.0}


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """Records of two sizes in Table 3, an ablation, Figure 1 and a timing."""
    root = tmp_path / "results"
    for seed in range(2):
        write_record(root / "table3" / f"n4-{seed}.json", detection_fields("table3", seed))
        write_record(root / "table3" / f"n1-{seed}.json", detection_fields("table3", seed, members=1))
        changed = detection_fields("ablations", seed, variant="no entropy term")
        write_record(root / "ablations" / f"{seed}.json", changed)
        write_record(root / "figure1" / f"duq-{seed}.json", plane_fields("duq", 1, seed, [0.1, 0.4][seed]))
    write_record(root / "figure1" / "be-snn.json", plane_fields("be-snn", 4, 0, 0.2))
    timing = {"experiment": "table2", "in": "fashion-mnist", "method": "softmax", "members": 1, "seed": 0, "variant": "a CPU"}
    write_record(root / "table2" / "softmax.json", timing | {"parameters": 1_152_778, "seconds": 0.25})
    return root
