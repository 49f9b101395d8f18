"""Our runs beside the paper's figures, line by line."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from besnn.evaluation.result import method_name
from experiments.paper import SEEDS, TABLE_2, PaperRow, Spread
from experiments.records import Record, Setting, spread

PAPER_SCORE = "tempered-entropy"  # what the paper scores BE-SNN with
NOT_RUN = "not run"

DETECTION_HEADER = (
    "In-distribution",
    "Method",
    "OOD set",
    "Source",
    "Seeds",
    "Accuracy ↑",
    "FPR95 ↓",
    "AUROC ↑",
    "AUPR, OOD positive ↑",
    "AUPR, ID positive ↑",
)
COST_HEADER = ("Method", "Source", "Parameters", "Milliseconds for 500 images")

ScoreChoice = Callable[[Sequence[Record]], list[str]]


class Row(NamedTuple):
    """One line of a table, and whether it is the paper's."""

    cells: tuple[str, ...]
    published: bool = False


def reported_scores(runs: Sequence[Record]) -> list[str]:
    """The score that the paper gives the method, and our default where it is another."""
    papers = [PAPER_SCORE for run in runs if run.setting.method == "be-snn"]
    return list(dict.fromkeys([*papers, *(run.default_score for run in runs)]))


def every_score(runs: Sequence[Record]) -> list[str]:
    """All scores that the runs recorded."""
    return list(dict.fromkeys(name for run in runs for name in run.scores))


def detection_rows(
    records: Sequence[Record],
    experiments: tuple[str, ...],
    choose_scores: ScoreChoice,
    published: Sequence[PaperRow] = (),
) -> list[Row]:
    """A line for each published figure and each score of our runs, grouped by setting and OOD set.

    Settings are those of the paper, then those of the first experiment; the other experiments fill in a setting that
    the first has no records of (Table 3 shares its N = 4 with Table 1).
    """
    in_paper = [Setting(experiments[0], line.in_name, line.method, line.members) for line in published]
    ours = [record.setting for record in records if record.setting.experiment == experiments[0]]
    settings = list(dict.fromkeys([*in_paper, *ours]))
    in_names = list(dict.fromkeys(setting.in_name for setting in settings))
    rows: list[Row] = []
    for setting in sorted(settings, key=lambda setting: in_names.index(setting.in_name)):
        runs = _runs(records, setting, experiments)
        lines = [line for line, its_setting in zip(published, in_paper, strict=True) if its_setting == setting]
        for out in dict.fromkeys([*(line.out for line in lines), *_ood_sets(runs)]):
            rows.extend(_published(setting, line) for line in lines if line.out == out)
            rows.extend(_measured(setting, out, runs, choose_scores(runs)))
    return rows


def cost_rows(records: Sequence[Record]) -> list[Row]:
    """Parameters and forward time of each method; ``variant`` of a timing's record names its hardware."""
    ours = [record for record in records if record.setting.experiment == "table2"]
    published = {(cost.method, cost.members): cost for cost in TABLE_2}
    rows: list[Row] = []
    for method, members in dict.fromkeys([*published, *((run.setting.method, run.setting.members) for run in ours)]):
        name = _describe(Setting("table2", "", method, members))
        if cost := published.get((method, members)):
            rows.append(Row((name, "paper", f"{cost.parameters:,}", f"{1e3 * cost.seconds:.1f}"), published=True))
        runs = [run for run in ours if (run.setting.method, run.setting.members) == (method, members)]
        for hardware in dict.fromkeys(run.setting.variant for run in runs):
            timed = [run for run in runs if run.setting.variant == hardware]
            milliseconds = spread([1e3 * run.seconds for run in timed])
            cells = (name, f"ours, {hardware}", f"{timed[0].parameters:,}", plus_minus(milliseconds, digits=2))
            rows.append(Row(cells))
        if not runs:
            rows.append(Row((name, "ours", NOT_RUN, "")))
    return rows


def plus_minus(value: Spread, digits: int = 3) -> str:
    """Mean ± standard deviation; the mean alone for a single run.

    >>> plus_minus(Spread(0.961, 0.016)), plus_minus(Spread(0.5, None))
    ('0.961 ± 0.016', '0.500')
    """
    deviation = "" if value.sd is None else f" ± {value.sd:.{digits}f}"
    return f"{value.mean:.{digits}f}{deviation}"


def _runs(records: Iterable[Record], setting: Setting, experiments: tuple[str, ...]) -> list[Record]:
    found = ([run for run in records if run.setting == replace(setting, experiment=name)] for name in experiments)
    return next((runs for runs in found if runs), [])


def _ood_sets(runs: Iterable[Record]) -> Iterator[str]:
    for run in runs:
        for sets in run.scores.values():
            yield from sets


def _published(setting: Setting, line: PaperRow) -> Row:
    figures = (plus_minus(line.fpr95), plus_minus(line.auroc), plus_minus(line.auprc), "—")
    cells = (line.in_name, _describe(setting), line.out, "paper", str(SEEDS), _in_percent(line.accuracy), *figures)
    return Row(cells, published=True)


def _measured(setting: Setting, out: str, runs: Sequence[Record], scores: Sequence[str]) -> Iterator[Row]:
    subject = (setting.in_name, _describe(setting))
    if not runs:
        yield Row((*subject, out, "ours", NOT_RUN, *[""] * 5))
    for score in scores:
        measured = [run for run in runs if out in run.scores.get(score, {})]
        if not measured:
            continue
        figures = [run.scores[score][out] for run in measured]
        sizes = "/".join(dict.fromkeys(f"{figure['n_out']:,}" for figure in figures))
        default = " (default)" if score == measured[0].default_score else ""
        accuracy = _in_percent(spread([run.accuracy for run in measured]))
        means = [
            plus_minus(spread([figure["fpr95"] for figure in figures])),
            plus_minus(spread([figure["auroc"] for figure in figures])),
            plus_minus(spread([figure["aupr_out"] for figure in figures])),
            plus_minus(spread([figure["aupr_in"] for figure in figures])),
        ]
        source = f"ours, {score}{default}"
        yield Row((*subject, f"{out} ({sizes})", source, str(len(measured)), accuracy, *means))


def _describe(setting: Setting) -> str:
    members = f", N = {setting.members}" if setting.members > 1 or setting.method == "be-snn" else ""
    variant = f", {setting.variant}" if setting.variant else ""
    return f"{method_name(setting.method)}{members}{variant}"


def _in_percent(value: Spread) -> str:
    return f"{plus_minus(Spread(100 * value.mean, None if value.sd is None else 100 * value.sd), digits=1)} %"
