"""How soon the drift alarm is raised on real drift, and how seldom where nothing changes.

    python benchmarks/drift_delay.py MODEL [--data-dir FOLDER] [--json results/drift_delay.json]

MODEL is a detector for FashionMNIST. A stream is 5,000 images of the test set in random order, and then the others, among which
every input is one of MNIST's test set with a probability of 10 %. The delay is counted in inputs from the first that could be
MNIST's. Control streams are the whole test set in random order. All streams know the same calibration scores.

Also: 1,000 streams of 10,000 made-up exchangeable scores, each with calibration scores of its own, and the share of those whose
martingale ever passes 20. Ville's inequality says at most 5 %.
"""

import argparse
import json
import math
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binomtest

from besnn import Detector
from besnn.data import load
from besnn.detection import DriftMonitor
from besnn.evaluation import ood_metrics
from besnn.storage.files import atomic_path
from besnn.training.record import provenance

KNOWN, STRANGE = "fashion-mnist", "mnist"
SHARE = 0.1
ORDINARY = 5000
STREAMS = 20
LEVELS = (20, 100)
EXCHANGEABLE = 1000, 10_000, 500  # streams, scores in each, calibration scores of each

Scores = NDArray[np.float64]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    detector = Detector.load(arguments.model)
    record = measure(detector, arguments.data_dir)
    print(json.dumps({name: record[name] for name in ("drift", "control", "exchangeable")}, indent=2))
    if arguments.json is not None:
        with atomic_path(arguments.json) as partial:
            partial.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


def measure(detector: Detector, data_dir: Path | None) -> dict[str, object]:
    """The record."""
    sets = {name: load(name, data_dir=data_dir, split="test") for name in (KNOWN, STRANGE)}
    known, strange = (detector.predict(data.inputs).score.astype(np.float64) for data in sets.values())
    drifting = [martingale(detector, drifting_stream(known, strange, seed), seed) for seed in range(STREAMS)]
    control = [martingale(detector, np.random.default_rng(seed).permutation(known), seed) for seed in range(STREAMS)]
    return {
        "experiment": "drift-delay",
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
        "provenance": provenance({name: value for data in sets.values() for name, value in data.hashes.items()}),
    }


def drifting_stream(known: Scores, strange: Scores, seed: int) -> Scores:
    """Every known score once, in random order; after the first 5,000 with strange ones among them."""
    rng = np.random.default_rng(seed)
    known, strange = rng.permutation(known), rng.permutation(strange)
    before, after = known[:ORDINARY], known[ORDINARY:]
    is_strange = rng.random(2 * len(after)) < SHARE
    is_strange = is_strange[np.cumsum(~is_strange) <= len(after)]
    mixed = np.empty(len(is_strange))
    mixed[is_strange], mixed[~is_strange] = strange[: is_strange.sum()], after
    return np.concatenate([before, mixed])


def martingale(detector: Detector, scores: Scores, seed: int) -> Scores:
    """The log martingale after each score, by the monitor as the service has it."""
    assert detector.threshold is not None
    return DriftMonitor.from_calibration(detector.threshold.scores, detector.threshold.threshold, seed=seed).update(scores)


def first_alarm(log_martingale: Scores, level: float) -> int | None:
    """The step, counted from 1, at which a level was first reached."""
    reached = np.flatnonzero(log_martingale >= math.log(level))
    return int(reached[0]) + 1 if len(reached) else None


def passes(log_martingale: Scores, level: float) -> bool:
    """Whether a level was ever reached."""
    return first_alarm(log_martingale, level) is not None


def delays(alarms: list[int | None], level: float) -> dict[str, object]:
    """How long after the change the alarms were raised."""
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
    """How many streams in which nothing changes ever pass a level."""
    streams, length, calibration = EXCHANGEABLE
    passed = 0
    for seed in range(streams):
        scores = np.random.default_rng([seed, 1]).normal(size=calibration + length)
        monitor = DriftMonitor.from_calibration(scores[:calibration], ood_threshold=2.0, seed=seed)
        passed += passes(monitor.update(scores[calibration:]), level)
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
    assert detector.threshold is not None
    return {
        "method": detector.model.method,
        "members": detector.model.members,
        "score": detector.scoring.name,
        "alpha": detector.threshold.alpha,
        "calibration_inputs": len(detector.threshold.scores),
        "epochs": None if detector.recipe is None else detector.recipe.training.epochs,
    }


if __name__ == "__main__":
    main()
