"""How soon the drift alarm is raised on real drift, and how rarely where nothing changes.

The detector is one for FashionMNIST. A stream is 5,000 images of the test set in random order, followed by the others, among
which every input is one of MNIST's test set with a probability of 10 %. The delay is counted in inputs from the first that
could be from MNIST. Control streams are the whole test set in random order. All streams use the same calibration scores.

In addition, 1,000 streams of 10,000 simulated exchangeable scores, each with its own calibration scores, count how many
martingales ever pass 20. Ville's inequality says at most 5 %.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binomtest

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
EXCHANGEABLE = 1000, 10_000, 500  # streams, scores in each, calibration scores of each

Scores = NDArray[np.float64]


def measure_drift(detector: Detector, data_dir: Path | None) -> dict[str, Any]:
    """Return the record of all streams."""
    sets = {name: load(name, data_dir=data_dir, split="test") for name in (KNOWN, STRANGE)}
    known, strange = (detector.predict(data.inputs).score.astype(np.float64) for data in sets.values())
    drifting = [martingale(detector, drifting_stream(known, strange, seed), seed) for seed in range(STREAMS)]
    control = [martingale(detector, np.random.default_rng(seed).permutation(known), seed) for seed in range(STREAMS)]
    fields = {
        "in": KNOWN,
        "out": STRANGE,
        "share": SHARE,
        "ordinary_inputs": ORDINARY,
        "streams": STREAMS,
        "detector": described(detector) | {"auroc": ood_metrics(known, strange)["auroc"]},
        "drift": [delays([first_alarm(path, level) for path in drifting], level) for level in LEVELS],
        "control": [
            {
                "alarm_level": level,
                "inputs": len(known),
                "alarms": sum(first_alarm(path, level) is not None for path in control),
            }
            for level in LEVELS
        ],
        "exchangeable": exchangeable(LEVELS[0]),
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


def martingale(detector: Detector, scores: Scores, seed: int) -> Scores:
    """Return the log martingale after each score, from the monitor that the service uses."""
    assert detector.threshold is not None
    return DriftMonitor.from_calibration(detector.threshold.scores, detector.threshold.threshold, seed=seed).update(scores)


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


def exchangeable(level: float) -> dict[str, object]:
    """Count the streams without any change whose martingale ever passes a level."""
    streams, length, calibration = EXCHANGEABLE
    passed = 0
    for seed in range(streams):
        scores = np.random.default_rng([seed, 1]).normal(size=calibration + length)
        monitor = DriftMonitor.from_calibration(scores[:calibration], ood_threshold=2.0, seed=seed)
        passed += first_alarm(monitor.update(scores[calibration:]), level) is not None
    interval = binomtest(passed, streams).proportion_ci(0.95, method="exact")
    return {
        "streams": streams,
        "length": length,
        "calibration_scores": calibration,
        "level": level,
        "passed": passed,
        "share": passed / streams,
        "interval": [interval.low, interval.high],
    }


def described(detector: Detector) -> dict[str, object]:
    """Return what a reader must know about the detector."""
    assert detector.threshold is not None
    return {
        "method": detector.model.method,
        "members": detector.model.members,
        "score": detector.scoring.name,
        "alpha": detector.threshold.alpha,
        "calibration_inputs": len(detector.threshold.scores),
        "epochs": None if detector.recipe is None else detector.recipe.training.epochs,
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
    detector, bound = record["detector"], record["exchangeable"]
    low, high = bound["interval"]
    sentences = [
        f"{record['streams']} streams of {record['in']} of which, after {record['ordinary_inputs']:,} inputs, "
        f"{record['share']:.0%} is {record['out']}, and as many in which nothing changes.",
        f"The detector: {detector['method']} of {detector['members']} members, {detector['epochs']} epochs, score "
        f"{detector['score']} (AUROC {detector['auroc']:.3f} on these two sets), {detector['calibration_inputs']:,} "
        "calibration inputs.",
        f"Of {bound['streams']:,} made-up streams of {bound['length']:,} exchangeable scores, {bound['share']:.1%} ever passed "
        f"{bound['level']:g} (95 % interval {low:.1%} to {high:.1%}); the bound is {1 / bound['level']:.0%}.",
    ]
    return Table("Delay to the drift alarm", header, rows, " ".join(sentences))
