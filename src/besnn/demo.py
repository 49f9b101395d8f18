"""The demo: the whole of besnn in two acts, on data that needs no download.

Act one is Two Moons, where confidence can be looked at: it must be high on the data and fall with the distance from it. Act two
is handwritten digits, of which two are kept from training: those, and scrambled images, must be flagged.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure

from besnn.data import Dataset, digits, keep_classes, load, made_up_outliers
from besnn.demo_report import digits_in_words, moons_in_words, render_demo
from besnn.detector import Detector
from besnn.evaluating import evaluate_detector
from besnn.evaluation import Evaluation
from besnn.evaluation.plane import Plane, Ring, confidence_by_distance
from besnn.evaluation.plots import confidence_map, save_figure
from besnn.storage.files import atomic_path
from besnn.training import load_recipe
from besnn.training.fit import fit_detector
from besnn.training.progress import Reporter, Row

Say = Callable[[str], None]

UNKNOWN_DIGITS = ("8", "9")
SHOWN_POINTS = 150  # more would hide what lies beneath them
RING_EDGES = (0, 0.1, 0.25, 0.5, 1, 2, 4)


@dataclass(frozen=True, eq=False)
class Moons:
    """What act one found: the detector, the picture, and its confidence in rings at growing distance from the data."""

    detector: Detector
    picture: Figure
    rings: list[Ring]


class EverySixthEpoch(Reporter):
    """Says now and then how training goes."""

    def __init__(self, tell: Say) -> None:
        self.tell = tell

    def epoch(self, row: Row) -> None:
        """A line for every sixth epoch."""
        if row["epoch"] % 6 == 0:
            accuracy = f"{100 * row['validation_accuracy']:.0f} % right on held-out data"
            self.tell(f"  epoch {row['epoch']:.0f}: loss {row['loss']:.2f}, {accuracy}")


def run_demo(folder: Path, say: Say = print) -> None:
    """Plays both acts; leaves models, the confidence map, a summary and a one-page report in a folder."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # networks this small gain nothing from more, and lose much where other work wants the cores
    try:
        _play(folder, say)
    finally:
        torch.set_num_threads(threads)


def _play(folder: Path, say: Say) -> None:
    began = time.monotonic()
    folder.mkdir(parents=True, exist_ok=True)
    say("Act 1, two moons: training 4 members on points of the plane")
    moons = play_moons(say)
    moons.detector.save(folder / "two-moons.safetensors")
    save_figure(moons.picture, folder / "two-moons.png")
    story = moons_in_words(moons.rings)
    say("\n".join(story))
    say("Act 2, digits: training 4 members on images of the digits 0 to 7; an 8 or a 9 they never see")
    detector, evaluation = play_digits(say)
    detector.save(folder / "digits.safetensors")
    say("\n".join(digits_in_words(evaluation)))
    story += digits_in_words(evaluation)
    files = [
        f"The confidence map is {folder / 'two-moons.png'}; the report on both acts is {folder / 'report.html'}.",
        f"The models are there too: try besnn inspect {folder / 'digits.safetensors'}",
    ]
    page = render_demo(moons.picture, moons.rings, evaluation, seconds=time.monotonic() - began)
    for name, text in {"report.html": page, "summary.txt": "\n".join([*story, *files, ""])}.items():
        with atomic_path(folder / name) as partial:
            partial.write_text(text, encoding="utf-8")
    say("\n".join(files))


def play_moons(say: Say) -> Moons:
    """Trains on Two Moons and looks at confidence over the plane: the largest kernel exp(−d̄), averaged over members."""
    data = load("two-moons:train")
    detector = fit_detector(load_recipe("two-moons"), data, reporter=EverySixthEpoch(say)).detector
    plane = Plane.around(data.inputs)
    confidence = -detector.score(plane.points.astype(np.float32), "kernel-confidence")
    shown, _ = data.split(SHOWN_POINTS)
    assert shown.labels is not None
    picture = confidence_map(plane, confidence, shown.inputs, shown.labels, "BE-SNN on two moons")
    return Moons(detector, picture, confidence_by_distance(plane.points, confidence, data.inputs, RING_EDGES))


def play_digits(say: Say) -> tuple[Detector, Evaluation]:
    """Trains on eight of the ten digits; judges on new images of those, on the other two, and on scrambled images."""
    train, test = load("digits:train"), load("digits:test")
    known = tuple(name for name in train.class_names if name not in UNKNOWN_DIGITS)
    recipe = load_recipe("digits", [f"data.classes={list(known)}"])
    detector = fit_detector(recipe, train, reporter=EverySixthEpoch(say)).detector
    seen = keep_classes(test, known)
    scrambled = made_up_outliers(seen.inputs, kinds=["shuffled-pixels"])["shuffled-pixels"]
    unknown = {
        f"the digits {' and '.join(UNKNOWN_DIGITS)}": keep_classes(digits(), UNKNOWN_DIGITS),
        "scrambled images": Dataset(scrambled, None, (), "scrambled images"),
    }
    return detector, evaluate_detector(detector, seen, unknown, title="Digits 0 to 7", known_name="new images of 0 to 7")
