"""Mutated bodies: never a 5xx, never a hang, no growing memory. benchmarks/serve_fuzz.py sends many more of them."""

import runpy
from pathlib import Path

import numpy as np

from besnn import Detector
from besnn.data import Dataset, two_moons

FUZZ = runpy.run_path(str(Path(__file__).resolve().parents[2] / "benchmarks" / "serve_fuzz.py"))["fuzz"]
BODIES = 1500
GROWTH = 64  # MiB; a leak of a body a request would be several times that in the long run, and shows there


def check(detector: Detector, inputs: np.ndarray) -> None:
    run = FUZZ(detector, inputs, BODIES)
    assert {"200", "400", "422"} <= run["statuses"].keys()  # some are still right, and some are wrong in different ways
    assert sum(run["statuses"].values()) == BODIES
    assert run["memory_growth_mib"] < GROWTH


def test_mutated_tables(moons_detector: Detector):
    check(moons_detector, two_moons(3).inputs)


def test_mutated_images(digits_detector: Detector, digit_data: Dataset):
    check(digits_detector, np.ascontiguousarray(digit_data.inputs[:2]))
