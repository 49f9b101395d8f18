"""How soon the drift alarm is raised on real drift, and how rarely where nothing changes.

The detector is one for FashionMNIST. A stream is 5,000 images of the test set in random order, followed by the others, among
which every input is one of MNIST's test set with a probability of 10 %. The delay is counted in inputs from the first that
could be from MNIST. Control streams are the whole test set in random order. All streams use the same calibration scores.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.documents import Table, bench_record
from besnn import Detector
from besnn.data import load
from besnn.detection import DriftMonitor
from besnn.evaluation import ood_metrics

KNOWN, STRANGE = "fashion-mnist", "mnist"
SHARE = 0.1
ORDINARY = 5000
STREAMS = 20
LEVELS = (20, 100)

Scores = NDArray[np.float64]


def measure_drift(detector: Detector, data_dir: Path | None) -> dict[str, Any]:
    """Return the record of all streams."""
    threshold = detector.threshold
    assert threshold is not None
    sets = {name: load(name, data_dir=data_dir, split="test") for name in (KNOWN, STRANGE)}
    known, strange = (detector.predict(data.inputs).score.astype(np.float64) for data in sets.values())

    def martingale(scores: Scores, seed: int) -> Scores:
        return DriftMonitor.from_calibration(threshold.scores, threshold.threshold, seed=seed).update(scores)

    drifting = [martingale(drifting_stream(known, strange, seed), seed) for seed in range(STREAMS)]
    control = [martingale(np.random.default_rng(seed).permutation(known), seed) for seed in range(STREAMS)]
    fields = {
        "in": KNOWN,
        "out": STRANGE,
        "share": SHARE,
        "ordinary_inputs": ORDINARY,
        "streams": STREAMS,
        "detector": {
            "method": detector.model.method,
            "members": detector.model.members,
            "score": detector.scoring.name,
            "calibration_inputs": len(threshold.scores),
            "epochs": None if detector.recipe is None else detector.recipe.training.epochs,
            "auroc": ood_metrics(known, strange)["auroc"],
        },
        "drift": [delays([first_alarm(path, level) for path in drifting], level) for level in LEVELS],
        "control": [
            {
                "alarm_level": level,
                "inputs": len(known),
                "alarms": sum(first_alarm(path, level) is not None for path in control),
            }
            for level in LEVELS
        ],
    }
    hashes = {name: value for data in sets.values() for name, value in data.hashes.items()}
    return bench_record("drift-delay", fields, data_hashes=hashes)


def drifting_stream(known: Scores, strange: Scores, seed: int) -> Scores:
    """Return every known score once, in random order; after the first 5,000, strange ones are mixed in."""
    rng = np.random.default_rng(seed)
    known, strange = rng.permutation(known), rng.permutation(strange)
    before, after = known[:ORDINARY], known[ORDINARY:]
    is_strange = rng.random(2 * len(after)) < SHARE
    is_strange = is_strange[np.cumsum(~is_strange) <= len(after)]
    mixed = np.empty(len(is_strange))
    mixed[is_strange], mixed[~is_strange] = strange[: is_strange.sum()], after
    return np.concatenate([before, mixed])


def first_alarm(log_martingale: Scores, level: float) -> int | None:
    """Return the step, counted from 1, at which a level was first reached."""
    reached = np.flatnonzero(log_martingale >= math.log(level))
    return int(reached[0]) + 1 if len(reached) else None


def delays(alarms: list[int | None], level: float) -> dict[str, object]:
    """Return how long after the change the alarms were raised."""
    raised = sorted(step - ORDINARY for step in alarms if step is not None and step > ORDINARY)
    early = sum(step is not None and step <= ORDINARY for step in alarms)
    median = float(np.median(raised)) if raised else None
    return {
        "alarm_level": level,
        "delays": raised,
        "median_delay": median,
        "before_the_change": early,
        "never": len(alarms) - len(raised) - early,
    }


def drift_table(record: Mapping[str, Any]) -> Table:
    """Return the table of delays for docs/serving.md."""
    rows = []
    for drift, control in zip(record["drift"], record["control"], strict=True):
        delays = drift["delays"]
        spread = f"{delays[0]:,} to {delays[-1]:,}" if delays else "–"
        median = "–" if drift["median_delay"] is None else f"{drift['median_delay']:,.0f}"
        counts = drift["before_the_change"], drift["never"], control["alarms"]
        rows.append((f"{drift['alarm_level']:g}", median, spread, *map(str, counts)))
    header = ("Level", "Median delay, inputs", "Range", "Too early", "Never", "Alarms without drift")
    detector = record["detector"]
    sentences = [
        f"{record['streams']} streams of {record['in']} of which, after {record['ordinary_inputs']:,} inputs, "
        f"{record['share']:.0%} is {record['out']}, and as many in which nothing changes.",
        f"The detector: {detector['method']} of {detector['members']} members, {detector['epochs']} epochs, score "
        f"{detector['score']} (AUROC {detector['auroc']:.3f} on these two sets), {detector['calibration_inputs']:,} "
        "calibration inputs.",
    ]
    return Table("Delay to the drift alarm", header, rows, " ".join(sentences))
