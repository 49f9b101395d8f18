"""Whether ONNX Runtime gives PyTorch's answers on the built-in test sets.

    python benchmarks/onnx_equality.py [--data-dir DIR] [--json results/onnx_equality.json] [--only NAME ...]

Small detectors are trained, one for each kind of input and backbone, exported, and asked about every row of the test sets
by both runtimes. Labels must agree, and scores to 1e-4, of themselves where they are larger than 1. A p-value counts
calibration scores, so it jumps where a score passes one: p-values and flags are compared exactly, each difference must be
such a jump, and both are counted. A record that exists keeps its figures of the detectors that are not named. Puts the table
into docs/export.md. With `--only` and no name, that is all it does.
"""

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnxruntime
import torch
from numpy.typing import NDArray

from besnn.data import load
from besnn.detector import Detector
from besnn.export.write import OPSET, export
from besnn.training import load_recipe
from besnn.training.fit import fit_detector
from besnn.training.record import provenance
from experiments.comparison import Row
from experiments.documents import fill_in
from experiments.rendering import Table

DOCUMENT = Path(__file__).resolve().parents[1] / "docs" / "export.md"
TOLERANCE = 1e-4
TIE = 1e-5  # two classes whose probabilities differ by less have no order that rounding could not change
BATCH = 500
SCORE = ("score.name=combined", "score.densities=[nearest-neighbour, class-gaussian]")  # passes through every kind of score


class Case(NamedTuple):
    """A detector and the sets to ask it about."""

    recipe: str
    training_rows: int
    sets: tuple[str, ...]
    overrides: tuple[str, ...]
    rows: int | None = None
    """Of each set; None for all."""


FASHION_SETS = ("fashion-mnist", "mnist", "not-mnist")
QUICK_FASHION = ("training.epochs=1", "training.precision=fp32", "method.gradient_weight=0")
# So short a training leaves all distances too large for the paper's score to tell inputs apart.
QUICK_CIFAR = (
    "pretraining=null",
    "training.epochs=1",
    "training.precision=fp32",
    "training.batch_rows=64",
    "method.gradient_weight=0",
    "score.name=nearest-neighbour",
    "score.layer=trunk.stage2+trunk",
)
CASES = {
    "two-moons": Case("two-moons", 2000, ("two-moons",), ("training.epochs=20",)),
    "two-moons, combined": Case("two-moons", 2000, ("two-moons",), ("training.epochs=20", *SCORE)),
    "digits": Case("digits", 1438, ("digits",), ("training.epochs=10",)),
    "fashion-mnist": Case("fashion-mnist", 3000, FASHION_SETS, (*QUICK_FASHION, "score.name=nearest-neighbour")),
    "fashion-mnist, combined": Case("fashion-mnist", 6000, FASHION_SETS, (*QUICK_FASHION, "training.epochs=3", *SCORE)),
    "cifar10, narrow": Case("cifar10", 1000, ("cifar10", "svhn"), ("backbone.width=8", *QUICK_CIFAR)),
    "cifar10": Case("cifar10", 300, ("cifar10", "svhn"), ("method.members=2", *QUICK_CIFAR), rows=100),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", type=Path, help="where built-in sets lie")
    parser.add_argument("--json", type=Path, help="where to write the record")
    parser.add_argument("--only", nargs="*", default=list(CASES), choices=list(CASES), help="some of the detectors")
    arguments = parser.parse_args()
    record = {"tolerance": TOLERANCE, "opset": OPSET, "onnxruntime": onnxruntime.__version__, "results": {}}
    if arguments.json and arguments.json.exists():
        record["results"] = json.loads(arguments.json.read_text(encoding="utf-8"))["results"]
    for name in arguments.only:
        began = time.monotonic()
        sets, hashes = compare(CASES[name], arguments.data_dir)
        seconds = round(time.monotonic() - began, 1)
        record["results"] |= {name: {"sets": sets, "seconds": seconds, "provenance": provenance(hashes)}}
        record["results"] = {name: record["results"][name] for name in CASES if name in record["results"]}
        if arguments.json:
            arguments.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    text = fill_in(DOCUMENT.read_text(encoding="utf-8"), [table(record["results"])])
    DOCUMENT.write_text(text, encoding="utf-8")
    sys.exit(not all(figures["passed"] for result in record["results"].values() for figures in result["sets"].values()))


def compare(case: Case, data_dir: Path | None) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    """Figures for each of a case's sets, and the hashes of the data."""
    detector = train(case, data_dir)
    session = exported(detector)
    figures: dict[str, dict[str, Any]] = {}
    hashes: dict[str, str] = {}
    for spec in case.sets:
        dataset = load(f"{spec}:test", data_dir=data_dir)
        figures[spec] = {"score": detector.scoring.name} | differences(detector, session, dataset.inputs[: case.rows])
        hashes |= dataset.hashes
    return figures, hashes


def train(case: Case, data_dir: Path | None) -> Detector:
    whole = load(f"{case.recipe}:train", data_dir=data_dir)
    part = whole if case.training_rows >= len(whole) else whole.split(case.training_rows)[0]
    return fit_detector(load_recipe(case.recipe, case.overrides), part).detector


def exported(detector: Detector) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    with tempfile.TemporaryDirectory() as folder:
        export(detector, Path(folder) / "model.onnx")
        return onnxruntime.InferenceSession(Path(folder) / "model.onnx", options, providers=["CPUExecutionProvider"])


def differences(
    detector: Detector, session: onnxruntime.InferenceSession, inputs: NDArray[np.uint8 | np.float32]
) -> dict[str, Any]:
    """How far the two runtimes are apart on all inputs."""
    ours = detector.predict(inputs)
    batches = [session.run(None, {"inputs": inputs[first : first + BATCH]}) for first in range(0, len(inputs), BATCH)]
    label, probabilities, score, p_value, is_ood = (np.concatenate(parts) for parts in zip(*batches, strict=True))
    by_size = np.sort(ours.probabilities, axis=1)
    other_label = label != ours.indices
    score_error = np.abs(score - ours.score.astype(np.float64))
    relative = score_error / np.maximum(1, np.abs(ours.score))
    # What the library's own calibration says of ONNX Runtime's score: what remains is not due to the score's rounding.
    assert detector.threshold is not None
    own_p_value = detector.threshold.p_values(torch.from_numpy(score).double()).numpy()
    own_flag = detector.threshold.is_ood(torch.from_numpy(score)).numpy()
    figures = {
        "rows": len(inputs),
        "other_labels": int(other_label.sum()),
        "other_labels_in_ties": int((other_label & (by_size[:, -1] - by_size[:, -2] < TIE)).sum()),
        "probability_error": float(np.abs(probabilities - ours.probabilities).max()),
        "score_error": float(score_error.max()),
        "score_error_of_itself_or_1": float(relative.max()),
        "largest_score": float(np.abs(ours.score).max()),
        "other_p_values": int((~np.isclose(p_value, ours.p_value, rtol=1e-6, atol=0)).sum()),
        "other_p_values_not_by_a_jump": int((~np.isclose(p_value, own_p_value, rtol=1e-6, atol=0)).sum()),
        "largest_jump": float(np.abs(p_value - ours.p_value).max()),
        "other_flags": int((is_ood != ours.is_ood).sum()),
        "other_flags_not_by_a_jump": int((is_ood != own_flag).sum()),
        "flagged": float(ours.is_ood.mean()),
    }
    equal = figures["other_labels"] == figures["other_labels_in_ties"] and relative.max() <= TOLERANCE
    return figures | {"passed": bool(equal and not figures["other_p_values_not_by_a_jump"])}


def table(results: dict[str, dict[str, Any]]) -> Table:
    """The record for the docs."""
    rows = [
        Row(
            (
                name,
                spec,
                f"{figures['rows']:,}",
                str(figures["other_labels"]),
                f"{figures['probability_error']:.1e}",
                f"{figures['score_error_of_itself_or_1']:.1e}",
                str(figures["other_p_values"]),
                str(figures["other_flags"]),
            )
        )
        for name, result in results.items()
        for spec, figures in result["sets"].items()
    ]
    header = (
        "Detector",
        "Set",
        "Rows",
        "Other labels",
        "Probabilities differ by",
        "Scores by",
        "Other p-values",
        "Other flags",
    )
    note = "Largest differences over all rows; of a score above 1, relative to it."
    return Table("ONNX Runtime against PyTorch", header, 2, rows, note)


if __name__ == "__main__":
    main()
