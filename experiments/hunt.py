"""The hunt for a recipe: many settings, judged on held-out data and made-up outliers, never on a set that is reported."""

import math
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from statistics import fmean, variance
from typing import Any

import yaml

from besnn.baselines import DUQ, GaussianClassifier, SoftmaxClassifier
from besnn.data import made_up_outliers
from besnn.errors import InputError
from besnn.model import BESNN
from besnn.training import load_recipe
from besnn.training.choose_score import made_up_aurocs
from besnn.training.fit import Fitted
from besnn.training.record import read_record
from experiments.comparison import Row
from experiments.detection import Measured
from experiments.layers import candidate_layers, fit_layers, made_up_by_layer
from experiments.members import class_feature_entropies, member_differences
from experiments.rendering import Table
from experiments.runs import Run, Workspace

HUNT = "hunt"
OWN_SCORES = {each.method: each.default_score for each in (SoftmaxClassifier, DUQ, GaussianClassifier)}


def hunt_runs(in_name: str, overrides: Sequence[str] = ()) -> list[Run]:
    """One run per setting and seed of the hunt that is shipped for a data set.

    >>> runs = hunt_runs("fashion-mnist")
    >>> runs[0].variant, runs[0].recipe.training.epochs
    ('the earlier recipe', 10)
    """
    folder = resources.files("experiments") / "hunts"
    path = folder / f"{in_name}.yaml"
    if not path.is_file():
        raise InputError(f"there is no hunt for {in_name!r}: the settings to try would be in hunts/{in_name}.yaml")
    hunt = yaml.safe_load(path.read_text(encoding="utf-8"))
    return [
        Run(HUNT, load_recipe(in_name, [*part["base"], *changes, *overrides, f"training.seed={seed}"]), variant=name)
        for part in (hunt, *hunt.get("others", {}).values())
        for seed in part.get("seeds", hunt.get("seeds", [0]))
        for name, changes in part["settings"].items()
    ]


def measure_hunt(fitted: Fitted, run: Run, workspace: Workspace) -> Measured:
    """Accuracy on the validation split, and each score's AUROC on each kind of outlier made up from it."""
    detector, validation = fitted.detector, fitted.split.validation
    if validation is None:
        raise InputError("a hunt judges settings on held-out data: set data.validation above 0")
    made_up = made_up_aurocs(detector, validation, detector.scoring.names)
    layers = fit_layers(detector, candidate_layers(run.recipe), run.recipe.score, fitted.split.training)
    made_up |= made_up_by_layer(detector, layers, validation)
    fields = {"validation_accuracy": fitted.history[-1]["validation_accuracy"], "made_up": made_up}
    outliers = made_up_outliers(validation.inputs, kinds=["blends", "drawn-strokes"])
    fields |= {"members_differ": member_differences(detector, {"known": validation.inputs} | outliers)}
    if isinstance(detector.model, BESNN):
        fields |= {"class_features": class_feature_entropies(detector, fitted.split.training)}
    return Measured(fields)


def hunt_records(results: Path, in_name: str) -> list[dict[str, Any]]:
    """The records of a data set's hunt for BE-SNN."""
    return [fields for fields in _all_records(results, in_name) if fields["method"] == "be-snn"]


def _all_records(results: Path, in_name: str) -> list[dict[str, Any]]:
    return [fields for fields in map(read_record, sorted((results / HUNT).glob("*.json"))) if fields["in"] == in_name]


def telling_kinds(records: Sequence[Mapping[str, Any]], score: str) -> list[str]:
    """The kinds of made-up outliers on which settings differ by more than seeds do.

    A kind counts if the standard deviation of a score's AUROC between the means of settings exceeds that between the seeds of
    one setting. Without two settings of two seeds each, every kind counts.
    """
    by_setting: dict[str, list[dict[str, float]]] = {}
    for fields in records:
        by_setting.setdefault(fields["variant"], []).append(fields["made_up"][score])
    repeated = [seeds for seeds in by_setting.values() if len(seeds) > 1]
    kinds = list(records[0]["made_up"][score]) if records else []
    if len(repeated) < 2:
        return kinds
    telling = []
    for kind in kinds:
        aurocs = [[seed[kind] for seed in seeds] for seeds in repeated]
        if variance(map(fmean, aurocs)) > fmean(map(variance, aurocs)):
            telling.append(kind)
    return telling


def hunt_table(results: Path, in_name: str = "fashion-mnist") -> Table:
    """What was tried for a data set and how it went, the best first."""
    records = hunt_records(results, in_name)
    own = "tempered-entropy"
    kinds = telling_kinds(records, own)
    by_setting: dict[str, list[dict[str, Any]]] = {}
    for fields in records:
        by_setting.setdefault(fields["variant"], []).append(fields)

    def cells(name: str, seeds: list[dict[str, Any]]) -> tuple[str, ...]:
        accuracy = f"{100 * fmean(fields['validation_accuracy'] for fields in seeds):.2f} %"
        scores = [shown_auroc(seeds, score, kinds) for score in HUNTED_SCORES]
        spreads = [fields["class_features"]["spread"] for fields in seeds if "class_features" in fields]
        return (name, str(len(seeds)), accuracy, *scores, f"{fmean(spreads):.2f}" if spreads else "—")

    def quality(seeds: list[dict[str, Any]]) -> float:
        return fmean(mean_auroc(fields, own, kinds) for fields in seeds)

    ordered = sorted(by_setting.items(), key=lambda setting: -quality(setting[1]))
    header = ("Setting", "Seeds", "Validation accuracy", "Tempered entropy", "Nearest neighbour", "Combined", "Spread v")
    note = (
        "Means over seeds. Scores: AUROC, averaged over the kinds of made-up outliers on which settings differ by more than "
        f"seeds do ({', '.join(kinds)}). Spread v: of the class features, averaged over members and classes."
    )
    return Table(_title(in_name), header, 1, [Row(cells(*setting)) for setting in ordered], note)


HUNTED_SCORES = ("tempered-entropy", "nearest-neighbour", "combined")


def others_table(results: Path, in_name: str = "fashion-mnist") -> Table:
    """The same for the other methods, each by the score that its paper gives it."""
    rows = []
    for fields in sorted(_all_records(results, in_name), key=lambda fields: (fields["method"], fields["variant"])):
        if fields["method"] != "be-snn":
            own = OWN_SCORES[fields["method"]]
            accuracy = f"{100 * fields['validation_accuracy']:.2f} %"
            rows.append(Row((fields["variant"], accuracy, own.replace("-", " "), shown_auroc([fields], own))))
    note = "One seed. AUROC: mean over the kinds of made-up outliers of a validation split of the training set."
    header = ("Setting", "Validation accuracy", "Score", "AUROC")
    return Table(f"{_title(in_name)}, other methods", header, 1, rows, note)


def _title(in_name: str) -> str:
    return "Recipe hunt" if in_name == "fashion-mnist" else f"Recipe hunt on {in_name}"


def shown_auroc(seeds: Sequence[dict[str, Any]], score: str, kinds: Sequence[str] | None = None) -> str:
    """The mean of `mean_auroc` over seeds in a table; a dash where records have no such score."""
    auroc = fmean(mean_auroc(fields, score, kinds) for fields in seeds)
    return "—" if math.isnan(auroc) else f"{auroc:.4f}"


def mean_auroc(fields: dict[str, Any], score: str, kinds: Sequence[str] | None = None) -> float:
    """A score's AUROC in a record of the hunt, averaged over kinds of made-up outliers; NaN where it has none."""
    of_kinds: dict[str, float] = fields["made_up"].get(score, {})
    return fmean(of_kinds[kind] for kind in kinds or of_kinds) if of_kinds else math.nan
