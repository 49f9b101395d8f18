"""The exported model in ONNX Runtime: how fast it is, and whether it gives PyTorch's answers.

For the answers, one small detector per kind of input and backbone is trained and exported, and both runtimes are asked about
every row of the built-in test sets. Labels must agree, and scores up to 1e-4, relative to the score where it is larger than 1.
A p-value counts calibration scores, so it jumps where a score passes one of them. P-values and flags are therefore compared
exactly, each difference must be such a jump, and both are counted.
"""

import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.documents import Table, bench_record
from benchmarks.findings import CLASSES, Check, Figure, Findings, Setting
from benchmarks.scoring import MEMBERS, besnn_model, floor_of, images_for, preprocessing_for
from benchmarks.timing import take_turns
from besnn.data import load
from besnn.detector import Detector
from besnn.export import OPSET, export
from besnn.training import load_recipe
from besnn.training.fit import fit_detector
from besnn.training.record import provenance

TOLERANCE = 1e-4
TIE = 1e-5  # two classes whose probabilities differ by less have no order that rounding could not change
BATCH = 500
SCORE = ("score.name=combined", "score.densities=[nearest-neighbour, class-gaussian]")  # passes through every kind of score


class Case(NamedTuple):
    """A detector to train, and the sets to ask it about."""

    recipe: str
    training_rows: int
    sets: tuple[str, ...]
    overrides: tuple[str, ...]
    rows: int | None = None
    """Rows of each set; None for all."""


FASHION_SETS = ("fashion-mnist", "mnist", "not-mnist")
QUICK_FASHION = ("training.epochs=1", "training.precision=fp32", "method.gradient_weight=0")
# After so short a training all distances are too large for the paper's score to tell inputs apart.
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


def score_exported(setting: Setting) -> Findings:
    """Time a batch of images by the ONNX model, decisions included, beside the detector it was exported from."""
    work = f"decide about {setting.images} images, exported"
    if setting.device.type != "cpu":
        return Findings(left_out=[f"{work}: measured on a CPU"])
    detector = Detector(besnn_model(setting), preprocessing_for(setting), [str(label) for label in range(CLASSES)])
    detector.calibrate(images_for(setting, 50))
    try:
        session = onnx_session(detector)
    except ImportError:
        return Findings(left_out=[f"{work}: needs the onnx extra, pip install 'besnn[onnx]'"])
    raw = images_for(setting, setting.images)
    inputs = {"inputs": raw.numpy()}
    runs = {"ONNX Runtime": lambda: session.run(None, inputs), "besnn": lambda: detector.predict(raw)}
    floor = floor_of(runs["besnn"], detector.model, raw, setting)
    timings = take_turns(runs, setting.device, setting.rounds, setting.warm_up)
    figures = [Figure(work, "be-snn", name, timing, floor, MEMBERS) for name, timing in timings.items()]
    (scores,) = session.run(["score"], inputs)
    error = float(abs(scores - detector.predict(raw).score).max())
    return Findings(figures, checks=[Check(work, "the detector's scores", error, 1e-4)])


def onnx_session(detector: Detector) -> Any:
    """Export a detector and open it in ONNX Runtime, with as many threads as PyTorch uses."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        export(detector, path)
        return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def onnx_record(
    names: Iterable[str], data_dir: Path | None, earlier: Mapping[str, Any], say: Callable[[str], None]
) -> dict[str, Any]:
    """Compare the runtimes on the named cases; an earlier record keeps its figures of the others."""
    import onnxruntime

    results = dict(earlier.get("results", {}))
    for name in names:
        say(f"{name} ...")
        sets, hashes = compare_runtimes(CASES[name], data_dir)
        results[name] = {"sets": sets, "provenance": provenance(hashes)}
    ordered = {name: results[name] for name in CASES if name in results}
    fields = {"tolerance": TOLERANCE, "opset": OPSET, "onnxruntime": onnxruntime.__version__, "results": ordered}
    return bench_record("onnx", fields)


def all_passed(record: Mapping[str, Any]) -> bool:
    """Return whether the runtimes agree in all cases of a record."""
    return all(figures["passed"] for result in record["results"].values() for figures in result["sets"].values())


def compare_runtimes(case: Case, data_dir: Path | None) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    """Return the figures of each of a case's sets, and the hashes of the data."""
    detector = _train(case, data_dir)
    session = onnx_session(detector)
    figures: dict[str, dict[str, Any]] = {}
    hashes: dict[str, str] = {}
    for spec in case.sets:
        dataset = load(f"{spec}:test", data_dir=data_dir)
        figures[spec] = {"score": detector.scoring.name} | differences(detector, session, dataset.inputs[: case.rows])
        hashes |= dataset.hashes
    return figures, hashes


def _train(case: Case, data_dir: Path | None) -> Detector:
    whole = load(f"{case.recipe}:train", data_dir=data_dir)
    part = whole if case.training_rows >= len(whole) else whole.split(case.training_rows)[0]
    return fit_detector(load_recipe(case.recipe, case.overrides), part).detector


def differences(detector: Detector, session: Any, inputs: NDArray[np.generic]) -> dict[str, Any]:
    """Return how far the two runtimes are apart on all inputs."""
    ours = detector.predict(inputs)
    batches = [session.run(None, {"inputs": inputs[first : first + BATCH]}) for first in range(0, len(inputs), BATCH)]
    label, probabilities, score, p_value, is_ood, *_ = (np.concatenate(parts) for parts in zip(*batches, strict=True))
    by_size = np.sort(ours.probabilities, axis=1)
    other_label = label != ours.indices
    score_error = np.abs(score - ours.score.astype(np.float64))
    relative = score_error / np.maximum(1, np.abs(ours.score))
    # The library's own calibration applied to ONNX Runtime's score: what differs then is not due to the rounding of the score.
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


def onnx_table(record: Mapping[str, Any]) -> Table:
    """Return the table for docs/export.md."""
    rows = [
        (
            name,
            data,
            f"{figures['rows']:,}",
            str(figures["other_labels"]),
            f"{figures['probability_error']:.1e}",
            f"{figures['score_error_of_itself_or_1']:.1e}",
            str(figures["other_p_values"]),
            str(figures["other_flags"]),
        )
        for name, result in record["results"].items()
        for data, figures in result["sets"].items()
    ]
    words = "Detector, Set, Rows, Other labels, Probabilities differ by, Scores by, Other p-values, Other flags"
    note = "Largest differences over all rows; of a score above 1, relative to it."
    return Table("ONNX Runtime against PyTorch", tuple(words.split(", ")), rows, note)
