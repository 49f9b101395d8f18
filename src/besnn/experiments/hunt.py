"""The hunt for a recipe: many settings, judged on held-out data and made-up outliers, never on a set that is reported."""

from collections.abc import Sequence
from importlib import resources
from pathlib import Path

import yaml

from besnn.errors import InputError
from besnn.evaluation.comparison import Row
from besnn.evaluation.tables import Table
from besnn.experiments.detection import Measured
from besnn.experiments.runs import Run, Workspace
from besnn.fitting import Fitted
from besnn.score_fitting import made_up_aurocs
from besnn.training import load_recipe
from besnn.training.record import read_record

HUNT = "hunt"


def hunt_runs(in_name: str, overrides: Sequence[str] = ()) -> list[Run]:
    """One run a setting of the hunt that is shipped for a data set.

    >>> runs = hunt_runs("fashion-mnist")
    >>> runs[0].variant, runs[0].recipe.training.epochs
    ("the paper's weights, 10 epochs", 10)
    """
    folder = resources.files("besnn.experiments") / "hunts"
    path = folder / f"{in_name}.yaml"
    if not path.is_file():
        raise InputError(f"there is no hunt for {in_name!r}: the settings to try would be in hunts/{in_name}.yaml")
    hunt = yaml.safe_load(path.read_text(encoding="utf-8"))
    return [
        Run(HUNT, load_recipe(in_name, [*hunt["base"], *changes, *overrides]), variant=name)
        for name, changes in hunt["settings"].items()
    ]


def measure_hunt(fitted: Fitted, run: Run, workspace: Workspace) -> Measured:
    """Accuracy on the validation split, and each score's AUROC on each kind of outlier made up from it."""
    detector, validation = fitted.detector, fitted.parts.validation
    if validation is None:
        raise InputError("a hunt judges settings on held-out data: set data.validation above 0")
    made_up = made_up_aurocs(detector, detector.scoring, validation, detector.scoring.names)
    return Measured({"validation_accuracy": fitted.history[-1]["validation_accuracy"], "made_up": made_up})


def hunt_table(results: Path) -> Table:
    """What was tried and how it went, best tempered entropy first."""
    rows = []
    for fields in sorted(map(read_record, (results / HUNT).glob("*.json")), key=lambda each: -_mean(each, "tempered-entropy")):
        scores = [f"{_mean(fields, name):.4f}" for name in ("tempered-entropy", "nearest-neighbour", "combined")]
        worst = min(fields["made_up"]["tempered-entropy"].items(), key=lambda kind: kind[1])
        accuracy = f"{100 * fields['validation_accuracy']:.2f} %"
        rows.append(Row((fields["variant"], accuracy, *scores, f"{worst[0]} {worst[1]:.3f}")))
    header = (
        "Setting",
        "Validation accuracy",
        "Tempered entropy",
        "Nearest neighbour",
        "Combined",
        "Tempered entropy, worst kind",
    )
    note = "One seed. Scores: mean AUROC over the kinds of made-up outliers of a validation split of the training set."
    return Table("Recipe hunt", header, 1, rows, note)


def _mean(fields: dict[str, dict[str, dict[str, float]]], score: str) -> float:
    of_kinds = fields["made_up"].get(score, {})
    return sum(of_kinds.values()) / len(of_kinds) if of_kinds else float("nan")
