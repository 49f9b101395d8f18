"""Figure 1: the confidence of four methods over the plane around Two Moons, as a picture and in numbers."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from besnn.data import Dataset, load, require_classes
from besnn.errors import DataError
from besnn.evaluation.checks import FloatArray
from besnn.evaluation.plane import Plane, confidence_by_distance, share_confident
from besnn.evaluation.plots import confidence_maps
from besnn.evaluation.result import method_name
from besnn.evaluation.style import save_figure
from besnn.storage.files import atomic_path
from besnn.training.fit import Fitted
from experiments.detection import Measured, accuracy_of
from experiments.runs import Run, Workspace, reproduction_recipe

PANELS = (("deep-ensemble", 4), ("duq", 1), ("be-snn", 1), ("be-snn", 4))
PLANE = Plane(np.linspace(-2.5, 3.5, 121), np.linspace(-3.0, 3.0, 121))
"""The part of the plane that DUQ's and the paper's pictures show."""
RING_EDGES = (0.0, 0.25, 0.5, 1.0, 2.0, 4.0)
"""Distances from the nearest training point; none of the plane is farther away."""

_CONFIDENCE_SCORES = {"distances": "kernel-confidence", "logits": "max-softmax-probability"}
"""Minus the confidence, by kind of evidence: exp(−distance) to the closest class, or the largest averaged probability."""


def figure1_runs(seeds: Iterable[int], overrides: Sequence[str] = ()) -> list[Run]:
    """Every panel of the figure with every seed.

    >>> [run.name for run in figure1_runs(seeds=[0])][::2]
    ['two-moons-deep-ensemble-n4-seed0', 'two-moons-be-snn-n1-seed0']
    """
    runs = []
    for seed in seeds:
        for method, members in PANELS:
            size = [f"method.members={members}"] if method in ("be-snn", "deep-ensemble") else []
            recipe = reproduction_recipe("two-moons", method, seed, ["score.name=method", *size, *overrides])
            runs.append(Run("figure1", recipe))
    return runs


def measure_confidence(fitted: Fitted, run: Run, workspace: Workspace) -> Measured:
    """The confidence in rings at growing distance from the training data, and the share of the plane where it exceeds 0.5.

    The map itself goes into an `.npz` file beside the record, for `draw_figure1`.
    """
    detector, training = fitted.detector, fitted.split.training
    assert isinstance(training, Dataset)  # it is generated, not read from a folder
    test = load(run.in_name, split="test")
    points = PLANE.points
    confidence = -detector.score(points, _CONFIDENCE_SCORES[detector.model.evidence_kind]).astype(np.float64)
    with atomic_path(_map_path(run, workspace)) as partial:
        np.savez_compressed(partial, confidence=confidence.astype(np.float16))
    rings = confidence_by_distance(points, confidence, training.inputs, RING_EDGES)
    fields = {
        "accuracy": accuracy_of(detector, test),
        "rings": [ring._asdict() for ring in rings],
        "share_confident": share_confident(confidence),
    }
    return Measured(fields, [test])


def draw_figure1(runs: Sequence[Run], workspace: Workspace, path: Path) -> Path:
    """Draws the panels of one seed, from the maps that their runs left."""
    maps = [(_title(run), _read_map(_map_path(run, workspace))) for run in runs]
    shown = load("two-moons", split="train").subset(np.arange(300))
    return save_figure(confidence_maps(PLANE, maps, shown.inputs, require_classes(shown)), path)


def _title(run: Run) -> str:
    method = run.recipe.method
    name = method_name(method.name)
    if method.name == "be-snn":
        return f"{name}-{method.members}"  # as the paper calls them
    return name if method.members == 1 else f"{name} ({method.members})"


def _map_path(run: Run, workspace: Workspace) -> Path:
    return workspace.record(run).with_suffix(".npz")


def _read_map(path: Path) -> FloatArray:
    try:
        with np.load(path) as arrays:
            confidence: FloatArray = arrays["confidence"].astype(np.float64)
    except (OSError, ValueError, KeyError):
        raise DataError(f"{path} is missing or damaged: remove {path.with_suffix('.json').name} to make it again") from None
    return confidence
