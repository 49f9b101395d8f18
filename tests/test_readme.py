"""The README: short, its code runs, its commands exist, and its table is made from the records."""

import re
import shlex
from pathlib import Path

import numpy as np
from torch import nn

from besnn.cli.app import app
from besnn.detector import Detector
from experiments.records import load_records
from experiments.tables import readme_table

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```", README, flags=re.MULTILINE | re.DOTALL)


def test_it_is_short() -> None:
    assert len(README.splitlines()) <= 120


def test_its_commands_exist() -> None:
    shell = "".join(re.findall(r"^```\n(.*?)^```", README, flags=re.MULTILINE | re.DOTALL))
    lines = [shlex.split(line, comments=True) for line in shell.splitlines() if line.startswith("besnn ")]
    names = {command.callback.__name__ for command in app.registered_commands if command.callback is not None}
    assert len(lines) >= 4
    assert {words[1] for words in lines} <= names


def test_the_estimator_flags_far_rows() -> None:
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(120, 3)) + 4 * (np.arange(120) % 2)[:, None], np.arange(120) % 2
    names = {"X": X, "y": y, "X_new": np.array([[50.0, -50.0, 50.0]])}
    exec(BLOCKS[0], names)
    assert names["clf"].is_ood(names["X_new"]).all()


def test_a_trained_network_becomes_a_calibrated_detector() -> None:
    rng = np.random.default_rng(0)
    labels = np.arange(240) % 2
    images = (rng.integers(0, 60, (240, 3, 8, 8)) + 150 * labels[:, None, None, None]).astype(np.uint8)
    layers = nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(256, 2)
    names = {"network": nn.Sequential(*layers), "images": images, "labels": labels, "mean": 0.5, "std": 0.25}
    names["new_images"] = images[:2]
    exec(BLOCKS[1], names)
    detector = names["detector"]
    assert isinstance(detector, Detector)
    assert detector.threshold is not None
    noise = rng.integers(0, 256, (50, 3, 8, 8)).astype(np.uint8)
    assert detector.predict(noise).is_ood.mean() > 0.5


def test_its_table_is_made_from_the_records() -> None:
    table = readme_table(load_records(ROOT / "results"), ROOT / "results")
    assert table.markdown() in README
    assert len(table.rows) <= 10
