"""The hunt for a recipe: many settings, judged on held-out data and made-up outliers, never on a set that is reported."""

import math
from collections.abc import Sequence
from importlib import resources
from itertools import groupby
from statistics import fmean, variance

import yaml

from benchmarks.documents import Table
from besnn.baselines import DUQ, GaussianClassifier, SoftmaxClassifier
from besnn.data import made_up_outliers
from besnn.detection.score_set import COMBINED
from besnn.errors import InputError
from besnn.model.feature_layers import layer_groups
from besnn.training import load_recipe
from besnn.training.choose_score import made_up_aurocs
from besnn.training.describe import member_differences
from besnn.training.fit import Fitted
from experiments.layer_densities import (
    CANDIDATE_LAYERS,
    COMBINED_LAYERS,
    at_layers,
    candidate_layers,
    made_up_by_layer,
    score_name,
)
from experiments.paper import PAPER_SCORE
from experiments.records import Record, of_experiment
from experiments.runs import Measured, Run, Workspace

HUNT = "hunt"
HUNTED_SCORES = (PAPER_SCORE, "nearest-neighbour", COMBINED)
BASELINE_SCORES = {each.method: each.default_score for each in (SoftmaxClassifier, DUQ, GaussianClassifier)}


def hunt_runs(in_name: str, overrides: Sequence[str] = ()) -> list[Run]:
    """Return one run per setting and seed of the hunt for a data set.

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
    """Measure accuracy on the validation split, and each score's AUROC on each kind of outlier made up from it."""
    detector, validation = fitted.detector, fitted.split.validation
    if validation is None:
        raise InputError("a hunt judges settings on held-out data: set data.validation above 0")
    made_up = made_up_aurocs(detector, validation, detector.scoring.names)
    if layers := candidate_layers(run.recipe):
        made_up |= made_up_by_layer(at_layers(detector, layers, run.recipe.score, fitted.split.training), validation)
    fields: dict[str, object] = {"validation_accuracy": fitted.history[-1]["validation_accuracy"], "made_up": made_up}
    if detector.model.members > 1:
        outliers = made_up_outliers(validation.inputs, kinds=["blends", "drawn-strokes"])
        fields["members_differ"] = member_differences(detector, {"known": validation.inputs} | outliers)
    return Measured(fields)


def hunt_tables(records: Sequence[Record], in_name: str, backbone: str) -> list[Table]:
    """Return the tables of a data set's hunt: BE-SNN's settings, the other methods', and the layers of a density."""
    hunted = [record for record in of_experiment(records, HUNT) if record.in_name == in_name]
    own = [record for record in hunted if record.method == "be-snn"]
    others = [record for record in hunted if record.method != "be-snn"]
    title = "Recipe hunt" if in_name == "fashion-mnist" else f"Recipe hunt on {in_name}"
    return [hunt_table(title, own), others_table(f"{title}, other methods", others), layer_table(in_name, backbone, own)]


def telling_kinds(records: Sequence[Record], score: str) -> list[str]:
    """Return the kinds of made-up outliers on which settings differ by more than seeds do.

    A kind counts if the standard deviation of a score's AUROC between the means of settings exceeds that between the seeds of
    one setting. Without two settings of two seeds each, every kind counts.
    """
    repeated = [seeds for seeds in by_setting(records) if len(seeds) > 1]
    kinds = list(records[0].made_up[score]) if records else []
    if len(repeated) < 2:
        return kinds
    telling = []
    for kind in kinds:
        aurocs = [[record.made_up[score][kind] for record in seeds] for seeds in repeated]
        if variance(map(fmean, aurocs)) > fmean(map(variance, aurocs)):
            telling.append(kind)
    return telling


def by_setting(records: Sequence[Record]) -> list[list[Record]]:
    """Group records that differ only in their seeds."""
    ordered = sorted(records, key=lambda record: record.variant)
    return [list(seeds) for _, seeds in groupby(ordered, key=lambda record: record.variant)]


def hunt_table(title: str, records: Sequence[Record]) -> Table:
    """Return what was tried and how it went, the best setting first."""
    kinds = telling_kinds(records, PAPER_SCORE)

    def cells(seeds: list[Record]) -> tuple[str, ...]:
        scores = [shown_auroc(seeds, score, kinds) for score in HUNTED_SCORES]
        spreads = [record.class_features["spread"] for record in seeds if record.class_features]
        spread = f"{fmean(spreads):.2f}" if spreads else "—"
        return (seeds[0].variant, str(len(seeds)), _accuracy(seeds), *scores, spread)

    def quality(seeds: list[Record]) -> float:
        return fmean(mean_auroc(record, PAPER_SCORE, kinds) for record in seeds)

    header = ("Setting", "Seeds", "Validation accuracy", "Tempered entropy", "Nearest neighbour", "Combined", "Spread v")
    note = (
        "Means over seeds. Scores: AUROC, averaged over the kinds of made-up outliers on which settings differ by more than "
        f"seeds do ({', '.join(kinds)}). Spread v: of the class features, averaged over members and classes."
    )
    return Table(title, header, [cells(seeds) for seeds in sorted(by_setting(records), key=quality, reverse=True)], note)


def others_table(title: str, records: Sequence[Record]) -> Table:
    """Return the same for the other methods, each by the score of its paper."""
    rows = []
    kinds = common_kinds(records)
    for method in sorted({record.method for record in records}):
        score = BASELINE_SCORES[method]
        for seeds in by_setting([record for record in records if record.method == method]):
            shown = shown_auroc(seeds, score, kinds)
            rows.append((seeds[0].variant, str(len(seeds)), _accuracy(seeds), score.replace("-", " "), shown))
    note = f"Means over seeds. AUROC: mean over the kinds of made-up outliers that all runs saw ({', '.join(kinds)})."
    return Table(title, ("Setting", "Seeds", "Validation accuracy", "Score", "AUROC"), rows, note)


def common_kinds(records: Sequence[Record]) -> list[str]:
    """Return the kinds of made-up outliers that every record has, of all its scores."""
    tables = [kinds for record in records for kinds in record.made_up.values()]
    return [kind for kind in tables[0] if all(kind in kinds for kinds in tables)] if tables else []


def layer_table(in_name: str, backbone: str, records: Sequence[Record]) -> Table:
    """Return one row per set of layers: nearest neighbours there, alone and combined with the paper's score.

    Means over all networks of the hunt that have the figure, whatever their settings.
    """
    kinds = telling_kinds(records, PAPER_SCORE)

    def row(layers: str, alone: str, combined: str, of: Sequence[Record]) -> tuple[str, ...]:
        return layers, str(len(of)), shown_auroc(of, alone, kinds), shown_auroc(of, combined, kinds)

    measured = [record for record in records if COMBINED_LAYERS in record.made_up]
    with_layer = {
        layer: [record for record in measured if score_name(layer) in record.made_up] for layer in CANDIDATE_LAYERS[backbone]
    }
    rows = [row(layer, score_name(layer), f"combined at {layer}", of) for layer, of in with_layer.items() if of]
    if measured:
        rows.append(row("all of these, apart", "", COMBINED_LAYERS, measured))
    apart = {record.recipe["score"]["layer"] for record in measured if _has_separate_layers(record)}
    for layers in sorted(apart):
        of = [record for record in measured if record.recipe["score"]["layer"] == layers]
        rows.append(row(f"{layers.replace(',', ', ')}, apart", "", COMBINED, of))
    note = (
        "Features of one layer, with maps averaged over all places, or of several joined (with a +), with maps averaged over a "
        f"2 × 2 grid. Mean AUROC on made-up outliers ({', '.join(kinds)}), over all networks of the hunt with that figure."
    )
    header = ("Layers", "Networks", "Nearest neighbour", "Combined with the paper's score")
    return Table(f"Layers on {in_name}", header, rows, note)


def _has_separate_layers(record: Record) -> bool:
    return len(layer_groups(record.recipe["score"]["layer"])) > 1


def _accuracy(seeds: Sequence[Record]) -> str:
    return f"{100 * fmean(record.validation_accuracy for record in seeds):.2f} %"


def shown_auroc(seeds: Sequence[Record], score: str, kinds: Sequence[str] | None = None) -> str:
    """Format the mean of `mean_auroc` over seeds; a dash where records have no such score."""
    auroc = fmean(mean_auroc(record, score, kinds) for record in seeds)
    return "—" if math.isnan(auroc) else f"{auroc:.4f}"


def mean_auroc(record: Record, score: str, kinds: Sequence[str] | None = None) -> float:
    """Return a score's AUROC in a record of the hunt, averaged over kinds of made-up outliers; NaN if it has none."""
    of_kinds = record.made_up.get(score, {})
    return fmean(of_kinds[kind] for kind in kinds or of_kinds) if of_kinds else math.nan
