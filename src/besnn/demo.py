"""The demo: all of besnn in two parts, on data that needs no download.

Part 1 is Two Moons, where confidence can be drawn: it must be high on the data and fall with the distance from it. Part 2 is
handwritten digits, two of which are left out of training: those, and scrambled images, must be flagged.
"""

import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from matplotlib.figure import Figure

from besnn.data import Dataset, digits, keep_classes, load, made_up_outliers
from besnn.detector import Detector
from besnn.evaluation import Evaluation
from besnn.evaluation.plane import Plane, Ring, confidence_by_distance
from besnn.evaluation.plots import confidence_map, image_grid, score_histograms
from besnn.evaluation.report import render_page
from besnn.evaluation.result import ScoredSet, percent
from besnn.evaluation.style import as_data_uri, save_figure
from besnn.storage.files import whole_file
from besnn.training import load_recipe
from besnn.training.fit import fit_detector
from besnn.training.progress import Reporter, Row
from besnn.training.record import provenance

Say = Callable[[str], None]

UNKNOWN_DIGITS = ("8", "9")
SHOWN_POINTS = 150  # more would hide the map beneath them
SHOWN_IMAGES = 6
RING_EDGES = (0, 0.1, 0.25, 0.5, 1, 2, 4)


class Moons(NamedTuple):
    """The outcome of part 1: the detector, the confidence map, and mean confidence in rings around the data."""

    detector: Detector
    picture: Figure
    rings: list[Ring]


class SomeEpochs(Reporter):
    """Reports every few epochs, in one line."""

    def __init__(self, tell: Say, every: int) -> None:
        self.tell, self.every = tell, every

    def epoch(self, row: Row) -> None:
        """Report an epoch if it is one of these."""
        if row["epoch"] % self.every == 0:
            accuracy = f"{100 * row['validation_accuracy']:.0f} % of held-out data classified correctly"
            self.tell(f"  epoch {row['epoch']:.0f}: loss {row['loss']:.2f}, {accuracy}")


def run_demo(folder: Path, say: Say = print) -> None:
    """Run both parts; write models, the confidence map, a summary and a one-page report to a folder."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # networks this small gain nothing from more threads
    try:
        _run(folder, say)
    finally:
        torch.set_num_threads(threads)


def _run(folder: Path, say: Say) -> None:
    began = time.monotonic()
    folder.mkdir(parents=True, exist_ok=True)
    say("Part 1, two moons: training 4 members on points in the plane")
    moons = run_moons(say)
    moons.detector.save(folder / "two-moons.safetensors")
    save_figure(moons.picture, folder / "two-moons.png")
    say(moons_in_words(moons.rings))
    say("Part 2, digits: training 4 members on images of the digits 0 to 7; they never see an 8 or a 9")
    detector, evaluation = run_digits(say)
    detector.save(folder / "digits.safetensors")
    say("\n".join(digits_in_words(evaluation)))
    files = (
        f"The confidence map is {folder / 'two-moons.png'}; the report on both parts is {folder / 'report.html'}.\n"
        f"The models are in the same folder: try besnn inspect {shlex.quote(str(folder / 'digits.safetensors'))}"
    )
    say(files)
    page = _page(moons, evaluation, seconds=time.monotonic() - began)
    summary = "\n".join([moons_in_words(moons.rings), *digits_in_words(evaluation), files, ""])
    for name, text in {"report.html": page, "summary.txt": summary}.items():
        with whole_file(folder / name) as partial:
            partial.write_text(text, encoding="utf-8")


def run_moons(say: Say) -> Moons:
    """Train on Two Moons and measure confidence over the plane: the largest kernel exp(−d̄), averaged over members."""
    data = load("two-moons:train")
    detector = fit_detector(load_recipe("two-moons"), data, reporter=SomeEpochs(say, every=30)).detector
    plane = Plane.around(data.inputs)
    confidence = -detector.score(plane.points.astype(np.float32), "kernel-confidence")
    shown, _ = data.split(SHOWN_POINTS)
    assert shown.labels is not None
    picture = confidence_map(plane, confidence, shown.inputs, shown.labels, "BE-SNN on two moons")
    return Moons(detector, picture, confidence_by_distance(plane.points, confidence, data.inputs, RING_EDGES))


def run_digits(say: Say) -> tuple[Detector, Evaluation]:
    """Train on eight of the ten digits; evaluate on new images of those, on the other two, and on scrambled images."""
    train, test = load("digits:train"), load("digits:test")
    known = tuple(name for name in train.class_names if name not in UNKNOWN_DIGITS)
    recipe = load_recipe("digits", [f"data.classes={list(known)}"])
    detector = fit_detector(recipe, train, reporter=SomeEpochs(say, every=6)).detector
    seen = keep_classes(test, known)
    scrambled = made_up_outliers(seen.inputs, kinds=["shuffled-pixels"])["shuffled-pixels"]
    unknown = {
        f"the digits {' and '.join(UNKNOWN_DIGITS)}": keep_classes(digits(), UNKNOWN_DIGITS),
        "scrambled images": Dataset(scrambled, None, (), "scrambled images"),
    }
    return detector, detector.evaluate(
        seen, unknown, title="Digits 0 to 7", known_name="new images of 0 to 7", provenance=provenance({})
    )


def moons_in_words(rings: Sequence[Ring]) -> str:
    """Return the confidence near and far from the data, as a sentence.

    >>> moons_in_words([Ring(0, 0.1, 0.8, 50), Ring(2, 4, 0.004, 90)])
    'Two moons: confidence is 0.80 on the moons and 0.00 at a distance of 2 or more.'
    """
    near, far = rings[0], rings[-1]
    return (
        f"Two moons: confidence is {near.mean_confidence:.2f} on the moons and {far.mean_confidence:.2f} "
        f"at a distance of {far.inner:g} or more."
    )


def digits_in_words(evaluation: Evaluation) -> list[str]:
    """Return accuracy, false alarms and flagged shares, one sentence each."""
    accuracy = float((evaluation.known.predictions == evaluation.labels).mean())
    return [
        f"Digits: of {len(evaluation.known)} {evaluation.known_name}, {percent(accuracy)} are classified correctly; "
        f"{percent(evaluation.known.flagged['rate'])} raise a false alarm (allowed: {100 * evaluation.alpha:g} %).",
        *(
            f"Digits: {percent(answers.flagged['rate'])} of {answers.flagged['n']} inputs are flagged as unknown: {name}."
            for name, answers in evaluation.unknown.items()
        ),
    ]


def _page(moons: Moons, evaluation: Evaluation, seconds: float) -> str:
    score = evaluation.default_score
    unknown_scores = {name: answers.scores[score] for name, answers in evaluation.unknown.items()}
    histograms = score_histograms(evaluation.known.scores[score], unknown_scores, evaluation.threshold, score)
    return render_page(
        "demo.html.j2",
        map=as_data_uri(moons.picture),
        rings=moons.rings,
        moons=moons_in_words(moons.rings),
        metrics=evaluation.metrics(resamples=200),
        examples=list(_examples(evaluation)),
        histograms=as_data_uri(histograms),
        seconds=seconds,
        provenance=evaluation.provenance,
    )


def _examples(evaluation: Evaluation) -> Iterator[tuple[str, str]]:
    """Yield a caption and a picture of a few inputs for each set."""
    for name, answers in {evaluation.known_name: evaluation.known, **evaluation.unknown}.items():
        assert answers.inputs is not None
        rows = np.linspace(0, len(answers) - 1, SHOWN_IMAGES).astype(int)
        captions = [_verdict(evaluation, answers, row) for row in rows]
        yield f"{name[0].upper()}{name[1:]}", as_data_uri(image_grid(answers.inputs[rows], captions))


def _verdict(evaluation: Evaluation, answers: ScoredSet, row: int) -> str:
    decision = "unknown" if answers.is_ood[row] else f"a {evaluation.class_names[answers.predictions[row]]}"
    return f"{decision}\np = {answers.p_values[row]:.3f}"
