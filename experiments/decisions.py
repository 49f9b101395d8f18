"""What decisions are worth: how the error falls as fewer inputs are answered, label sets, and calibration, by method.

As for the trained detector, promises are calibrated on one half of the official test set and measured on the other.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from benchmarks.documents import Table
from besnn.training.fit import Fitted
from experiments.detection import official_test_set
from experiments.detector import halves_of_test_set
from experiments.paper import plus_minus
from experiments.records import Record, of_experiment, spread
from experiments.runs import Measured, Run, Workspace, reproduction_recipe, task_of

DECISIONS = "decisions"
METHODS = ("be-snn", "softmax", "duq", "deep-ensemble")
LABEL_ALPHA = 0.05
_ORDER = "decision"  # of answering: the detector's own
HEADER = (
    "In-distribution",
    "Method",
    "Seeds",
    "Accuracy ↑",
    "AURC ↓",
    "AUGRC ↓",
    "SCOD-AURC ↓",
    "Sets that hold the class",
    "Labels in a set ↓",
    "ECE, before scaling ↓",
)


def decision_runs(in_name: str, seeds: Iterable[int], overrides: Sequence[str] = ()) -> list[Run]:
    """Return the runs: each method with each seed, by the recipes of Table 1."""
    changes = [f"calibration.label_alpha={LABEL_ALPHA}", *overrides]
    unknown = task_of(in_name).unknown
    return [Run(DECISIONS, reproduction_recipe(in_name, name, seed, changes), unknown) for seed in seeds for name in METHODS]


def measure_decisions(fitted: Fitted, run: Run, workspace: Workspace) -> Measured:
    """Calibrate with labels, and measure the decisions on the other half of the test set and on the OOD sets."""
    detector = fitted.detector
    held_out, test = (half.align_classes(detector.class_names) for half in halves_of_test_set(run, workspace))
    detector.calibrate(held_out.inputs, labels=held_out.labels, **run.recipe.calibration.model_dump())
    unknown = {name: official_test_set(name, run, workspace) for name in run.unknown}
    figures: dict[str, Any] = {**detector.evaluate(test, unknown).metrics(resamples=1)}
    kept = "accuracy", "nll", "ece", "default_score", "scores", "labels", "selective", "decisions", "false_alarm_rate"
    return Measured({name: figures[name] for name in kept}, [held_out, test, *unknown.values()])


def decision_table(records: Sequence[Record]) -> Table:
    """Return one row per in-distribution set and method."""
    own = of_experiment(records, DECISIONS)
    rows = []
    for in_name, method in dict.fromkeys((record.in_name, record.method) for record in own):
        runs = [record for record in own if (record.in_name, record.method) == (in_name, method)]
        areas, labels = [run.selective[_ORDER] for run in runs], [run.labels for run in runs]
        scod = ", ".join(
            f"{plus_minus(spread([area['scod_aurc'][out] for area in areas]))} ({out})" for out in areas[0]["scod_aurc"]
        )
        columns = [
            plus_minus(spread([run.accuracy for run in runs])),
            *(plus_minus(spread([area[name] for area in areas]), digits=4) for name in ("aurc", "augrc")),
            scod,
            *(plus_minus(spread([each["sets"][name] for each in labels])) for name in ("coverage", "mean_size")),
            f"{plus_minus(spread([run.ece for run in runs]))}, {plus_minus(spread([each['ece_unscaled'] for each in labels]))}",
        ]
        rows.append((in_name, method, str(len(runs)), *columns))
    note = (
        "Inputs are answered in the order of the detector's decision: by the probability of the label, lowered where the "
        f"p-value is below alpha. Label sets promise to hold the class of {100 * (1 - LABEL_ALPHA):g} % of accepted inputs. "
        "Calibrated on one half of the test set, measured on the other."
    )
    return Table("Decisions", HEADER, rows, note)
