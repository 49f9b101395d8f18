"""Figure 1: the confidence of four methods over the plane around Two Moons, as a picture and in numbers."""

from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path

import numpy as np

from benchmarks.documents import Table
from besnn.data import Dataset, load, require_classes
from besnn.errors import DataError
from besnn.evaluation.checks import FloatArray
from besnn.evaluation.plane import Plane, confidence_by_distance, share_confident
from besnn.evaluation.plots import confidence_maps
from besnn.evaluation.result import method_name
from besnn.evaluation.style import save_figure
from besnn.storage.files import atomic_path
from besnn.training.fit import Fitted
from experiments.detection import accuracy_of
from experiments.paper import plus_minus
from experiments.records import Record, of_experiment, spread
from experiments.runs import Measured, Run, Workspace, reproduction_recipe

FIGURE_1 = "figure1"
PANELS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("deep-ensemble", ("method.members=4",)),
    ("duq", ()),
    ("be-snn", ("method.members=1", "training.epochs=110")),  # a single network fits the moons sooner than four members do
    ("be-snn", ("method.members=4",)),
)
"""The methods, and what is set beside their recipes."""
PLANE = Plane(np.linspace(-2.5, 3.5, 121), np.linspace(-3.0, 3.0, 121))
"""The part of the plane that the figures of DUQ and of the paper show."""
RING_EDGES = (0.0, 0.25, 0.5, 1.0, 2.0, 4.0)
"""Distances from the nearest training point; the whole plane is within the last one."""

_CONFIDENCE_SCORES = {"distances": "kernel-confidence", "logits": "max-softmax-probability"}
"""Minus the confidence, by kind of evidence: exp(−distance) to the closest class, or the largest averaged probability."""


def figure1_runs(seeds: Iterable[int], overrides: Sequence[str] = ()) -> list[Run]:
    """Return every panel of the figure with every seed.

    >>> [run.name for run in figure1_runs(seeds=[0])][::2]
    ['two-moons-deep-ensemble-n4-seed0', 'two-moons-be-snn-n1-seed0']
    """
    runs = []
    for seed in seeds:
        for method, settings in PANELS:
            recipe = reproduction_recipe("two-moons", method, seed, ["score.name=method", *settings, *overrides])
            runs.append(Run(FIGURE_1, recipe))
    return runs


def measure_confidence(fitted: Fitted, run: Run, workspace: Workspace) -> Measured:
    """Measure the confidence in rings around the training data, and the share of the plane where it exceeds 0.5.

    The map itself is saved in an `.npz` file beside the record, for `draw_figure1`.
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
    """Draw the panels of one seed, from the maps that their runs saved."""
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
        raise DataError(f"{path} is missing or damaged: remove {path.with_suffix('.json').name} to run it again") from None
    return confidence


def figure1_table(records: Sequence[Record]) -> Table:
    """Return Figure 1 in numbers."""
    runs = of_experiment(records, FIGURE_1)
    edges = [(ring.inner, ring.outer) for ring in runs[0].rings] if runs else []
    header = ("Method", "Seeds", *(f"{inner:g} to {outer:g}" for inner, outer in edges), "Share above 0.5")
    rows = []
    for setting, same in groupby(runs, key=lambda record: record.setting):
        seeds = list(same)
        by_ring = zip(*([ring.mean_confidence for ring in record.rings] for record in seeds), strict=True)
        figures = [*by_ring, [record.share_confident for record in seeds]]
        rows.append((setting.description, str(len(seeds)), *(plus_minus(spread(values)) for values in figures)))
    note = (
        "Two Moons: mean confidence by distance from the nearest training point, and the share of the plane with a confidence "
        "above 0.5; mean ± sample standard deviation over seeds."
    )
    return Table("Figure 1: confidence over the plane", header, rows, note)
