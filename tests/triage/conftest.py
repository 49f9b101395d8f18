"""A detector of two kinds of points, and inputs with two kinds that it has never seen."""

import numpy as np
import pytest

from besnn.data import Dataset
from besnn.detector import Detector
from besnn.training import load_recipe
from besnn.training.fit import fit_detector

CENTRES = {"left": (0, 0), "right": (6, 0), "up": (3, 30), "down": (3, -30)}


def points(names, each, seed, labelled=True) -> Dataset:
    rng = np.random.default_rng(seed)
    inputs = np.concatenate([rng.normal(CENTRES[name], 0.5, (each, 2)) for name in names]).astype(np.float32)
    labels = np.repeat(np.arange(len(names)), each) if labelled else None
    return Dataset(inputs, labels, tuple(names), f"points {seed}", feature_names=("x1", "x2"))


@pytest.fixture(scope="session")
def training() -> Dataset:
    return points(["left", "right"], 200, seed=0)


@pytest.fixture(scope="session")
def detector(training) -> Detector:
    settings = (
        "training.epochs=4",
        "score.name=class-gaussian",
        "score.layer=null",
        "method.members=2",
        "backbone.hidden=[16, 16]",
    )
    detector = fit_detector(load_recipe("table", ["data.source=points.csv", *settings]), training).detector
    return detector.calibrate(points(["left", "right"], 100, seed=2).inputs, alpha=0.01)


@pytest.fixture(scope="session")
def inbox() -> Dataset:
    return points(["left", "up", "right", "down"], 60, seed=1, labelled=False)


@pytest.fixture(scope="session")
def truth() -> np.ndarray:
    return np.repeat(["left", "up", "right", "down"], 60)
