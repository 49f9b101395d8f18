"""Tables from the records of all experiments, the paper's figures beside ours."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.documents import Table, bench_records
from besnn.detection.score_set import COMBINED
from experiments.conversion import CONVERSION
from experiments.cost import COST, TABLE_2, cost_table
from experiments.decisions import DECISIONS, decision_table
from experiments.detector import SHIPPED, detector_table
from experiments.figure1 import FIGURE_1, figure1_table
from experiments.hunt import HUNT, hunt_tables
from experiments.paper import NOT_RUN, PAPER_SCORE, SEEDS, TABLE_1, TABLE_3, PaperRow, Spread, plus_minus
from experiments.paper import TABLE_2 as PAPER_COSTS
from experiments.records import Record, Setting, load_records, of_experiment, spread
from experiments.runs import TASKS
from experiments.triage import triage_table

PLAIN_SCORE = "softmax-entropy"
"""The paper's score without tempering."""
TEMPERING = "tempered or plain softmax"
DOCUMENTS = (
    "README.md",
    "docs/reproduction.md",
    "docs/hunt-fashion-mnist.md",
    "docs/hunt-cifar10.md",
    "docs/convert.md",
    "docs/decisions.md",
)

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
_DETECTION_NOTE = (
    "Mean ± sample standard deviation over seeds. FPR95: the share of OOD inputs accepted when 95 % of in-distribution "
    "inputs are accepted. In brackets: the size of the OOD set. The paper does not say which class its AUPRC takes as "
    "positive, nor the sizes of its sets; its figures fit OOD as positive on larger sets and stand in that column."
)

README_SETS = {"fashion-mnist": ("mnist", "not-mnist"), "cifar10": ("svhn",)}
README_HEADER = ("FPR95 ↓ / AUROC ↑", "FashionMNIST accuracy", "vs MNIST", "vs NotMNIST", "CIFAR-10 accuracy", "vs SVHN")

Cells = tuple[str, ...]
ScoreChoice = Callable[[Sequence[Record]], list[str]]


def result_tables(results: Path) -> list[Table]:
    """Return every table that the records under a folder make; tables without rows are left out."""
    records = load_records(results)
    notes = _data_notes(records)
    tables = [
        *(replace(table, note=f"{table.note} {_about(table, notes)}".strip()) for table in detection_tables(records)),
        cost_rows_table(records),
        cost_table(records),
        figure1_table(records),
        *(detector_table(name, results) for name in SHIPPED),
        decision_table(records),
        triage_table(results),
        readme_table(records, results),
        *(table for task in TASKS.values() for table in hunt_tables(records, task.name, task.backbone)),
    ]
    return [table for table in tables if table.rows]


def detection_tables(records: Sequence[Record]) -> Iterator[Table]:
    """Yield Tables 1 and 3 of the paper with ours beside, the further experiments, and Table 1 with every score."""
    yield _detection("Table 1: the methods", detection_rows(records, ("table1", "table3"), reported_scores, TABLE_1))
    yield _detection("Table 3: the ensemble size", detection_rows(records, ("table3", "table1"), reported_scores, TABLE_3))
    tempering = [record.model_copy(update={"experiment": TEMPERING}) for record in of_experiment(records, "table3")]
    others = {record.experiment for record in records} - {"table1", TABLE_2, "table3", COST, FIGURE_1, HUNT, DECISIONS}
    for name in sorted(others | ({TEMPERING} if tempering else set())):
        choose = _SCORES.get(name, reported_scores)
        yield _detection(f"Experiment: {name}", detection_rows([*records, *tempering], (name,), choose))
    yield _detection("Table 1, every score", detection_rows(records, ("table1",), every_score))


def _detection(title: str, rows: list[Cells]) -> Table:
    return Table(title, DETECTION_HEADER, rows, _DETECTION_NOTE)


def reported_scores(runs: Sequence[Record]) -> list[str]:
    """Return the score that the paper gives the method, and our default where it is another."""
    papers = [PAPER_SCORE for run in runs if run.method == "be-snn"]
    return list(dict.fromkeys([*papers, *(run.default_score for run in runs)]))


def every_score(runs: Sequence[Record]) -> list[str]:
    """Return all scores that the runs recorded."""
    return list(dict.fromkeys(name for run in runs for name in run.scores))


_SCORES: dict[str, ScoreChoice] = {
    TEMPERING: lambda runs: [PAPER_SCORE, PLAIN_SCORE],
    CONVERSION: lambda runs: list(dict.fromkeys([*reported_scores(runs), COMBINED])),
}
"""By experiment, the scores that its table shows where they are not the reported ones."""


def detection_rows(
    records: Sequence[Record],
    experiments: tuple[str, ...],
    choose_scores: ScoreChoice,
    published: Sequence[PaperRow] = (),
) -> list[Cells]:
    """Return a row for each published figure and each score of our runs, grouped by setting and OOD set.

    Settings are those of the paper, then those of the first experiment; the other experiments fill in a setting that the first
    has no records of (Table 3 shares its N = 4 with Table 1).
    """
    in_paper = [Setting(experiments[0], row.in_name, row.method, row.members) for row in published]
    ours = [record.setting for record in of_experiment(records, experiments[0])]
    settings = list(dict.fromkeys([*in_paper, *ours]))
    in_names = list(dict.fromkeys(setting.in_name for setting in settings))
    rows: list[Cells] = []
    for setting in sorted(settings, key=lambda setting: in_names.index(setting.in_name)):
        runs = _runs(records, setting, experiments)
        paper_rows = [row for row, its_setting in zip(published, in_paper, strict=True) if its_setting == setting]
        measured = [out for run in runs for sets in run.scores.values() for out in sets]
        for out in dict.fromkeys([*(row.out for row in paper_rows), *measured]):
            rows.extend(_published_row(setting, row) for row in paper_rows if row.out == out)
            rows.extend(_measured_rows(setting, out, runs, choose_scores(runs)))
    return rows


def _runs(records: Sequence[Record], setting: Setting, experiments: tuple[str, ...]) -> list[Record]:
    found = ([run for run in records if run.setting == setting._replace(experiment=name)] for name in experiments)
    return next((runs for runs in found if runs), [])


def _published_row(setting: Setting, row: PaperRow) -> Cells:
    figures = (plus_minus(row.fpr95), plus_minus(row.auroc), plus_minus(row.auprc), "—")
    return (row.in_name, setting.description, row.out, "paper", str(SEEDS), _in_percent(row.accuracy), *figures)


def _measured_rows(setting: Setting, out: str, runs: Sequence[Record], scores: Sequence[str]) -> Iterator[Cells]:
    subject = (setting.in_name, setting.description)
    if not runs:
        yield (*subject, out, "ours", NOT_RUN, *[""] * 5)
    for score in scores:
        measured = [run for run in runs if out in run.scores.get(score, {})]
        if not measured:
            continue
        figures = [run.scores[score][out] for run in measured]
        sizes = "/".join(dict.fromkeys(f"{figure['n_out']:,.0f}" for figure in figures))
        default = " (default)" if score == measured[0].default_score else ""
        accuracy = _in_percent(spread([run.accuracy for run in measured]))
        means = [plus_minus(spread([figure[name] for figure in figures])) for name in ("fpr95", "auroc", "aupr_out", "aupr_in")]
        yield (*subject, f"{out} ({sizes})", f"ours, {score}{default}", str(len(measured)), accuracy, *means)


def cost_rows_table(records: Sequence[Record]) -> Table:
    """Return Table 2: parameters and forward time of each method; `variant` of a timing's record names its hardware."""
    ours = of_experiment(records, TABLE_2)
    published = {(cost.method, cost.members): cost for cost in PAPER_COSTS}
    rows: list[Cells] = []
    for method, members in dict.fromkeys([*published, *((run.method, run.members) for run in ours)]):
        name = Setting(TABLE_2, "", method, members).description
        if cost := published.get((method, members)):
            rows.append((name, "paper", f"{cost.parameters:,}", f"{1e3 * cost.seconds:.1f}"))
        runs = [run for run in ours if (run.method, run.members) == (method, members)]
        for hardware in dict.fromkeys(run.variant for run in runs):
            timed = [run for run in runs if run.variant == hardware]
            milliseconds = spread([1e3 * run.seconds for run in timed])
            rows.append((name, f"ours, {hardware}", f"{timed[0].parameters:,}", plus_minus(milliseconds, digits=2)))
        if not runs:
            rows.append((name, "ours", NOT_RUN, ""))
    header = ("Method", "Source", "Parameters", "Milliseconds for 500 images")
    note = "One forward pass of 500 images. The paper's times are from another machine (RTX 3090)."
    return Table("Table 2: parameters and run time", header, rows, note)


def _in_percent(value: Spread) -> str:
    return f"{plus_minus(Spread(100 * value.mean, None if value.sd is None else 100 * value.sd), digits=1)} %"


def _data_notes(records: Sequence[Record]) -> list[str]:
    """Return what readers must know about the data, such as that a set was incomplete: `set:split: note` each."""
    origins = [record.provenance.get("data_note", "") for record in records]
    return list(dict.fromkeys(note for origin in origins for note in origin.split("; ") if note))


def _about(table: Table, notes: Sequence[str]) -> str:
    """Return the notes on the sets that a table shows, as a sentence; nothing if there are none."""
    shown = {cell.partition(" ")[0] for row in table.rows for cell in row}
    own = [note for note in notes if note.partition(":")[0] in shown]
    return f"Data: {'; '.join(own)}." if own else ""


def readme_table(records: Sequence[Record], results: Path) -> Table:
    """Return the README's six rows from Table 1's records, with the speed in the note; no rows without such records."""
    records = [record for record in of_experiment(records, "table1") if not record.variant]
    defaults = {run.in_name: run.default_score for run in records if run.method == "be-snn"}
    rows = [
        _published_short("BE-SNN, the paper's figures", "be-snn"),
        _measured_short("BE-SNN by the paper's score", records, "be-snn", lambda run: PAPER_SCORE),
        _measured_short("BE-SNN by besnn's default score", records, "be-snn", lambda run: run.default_score),
        _published_short("Softmax network, the paper's figures", "softmax"),
        _measured_short("Softmax network by its entropy", records, "softmax", lambda run: run.default_score),
        _measured_short("Softmax network by besnn's default score", records, "softmax", lambda run: defaults[run.in_name]),
    ]
    seeds = len({record.seed for record in records})
    meaning = "FPR95 is the share of unknown inputs accepted when 95 % of known inputs are accepted."
    note = f"Means over {seeds} seeds. {meaning} {_speed(results)}"
    return Table("Results in short", README_HEADER, rows if records else [], note.rstrip())


def _published_short(name: str, method: str) -> Cells:
    cells = [name]
    for known, unknown in README_SETS.items():
        rows = {row.out: row for row in TABLE_1 if (row.in_name, row.method) == (known, method)}
        cells.append(_percent(next(iter(rows.values())).accuracy.mean))
        cells += [_pair(rows[out].fpr95.mean, rows[out].auroc.mean) for out in unknown]
    return tuple(cells)


def _measured_short(name: str, records: Sequence[Record], method: str, choose_score: Callable[[Record], str]) -> Cells:
    cells = [name]
    for known, unknown in README_SETS.items():
        runs = [run for run in records if (run.in_name, run.method) == (known, method)]
        cells.append(_percent(spread([run.accuracy for run in runs]).mean) if runs else NOT_RUN)
        for out in unknown:
            found = [sets[out] for run in runs if out in (sets := run.scores.get(choose_score(run), {}))]
            means = [spread([each[figure] for each in found]).mean for figure in ("fpr95", "auroc")] if found else []
            cells.append(_pair(*means) if means else NOT_RUN)
    return tuple(cells)


def _speed(results: Path) -> str:
    """Return how long four members take beside a deep ensemble of four, by hardware; nothing if that was not timed."""
    ratios = {
        record["variant"]: target["value"]
        for record in bench_records("speed", results)
        for target in record["targets"]
        if (target["work"], target["claim"]) == ("score 500 images", "time over a deep ensemble's")
    }
    if not ratios:
        return ""
    times = "; ".join(f"{ratio:.2f} on {hardware}" for hardware, ratio in ratios.items())
    return f"Four members score 500 images in a fraction of the time of a deep ensemble of four: {times}."


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _pair(fpr95: float, auroc: float) -> str:
    return f"{fpr95:.3f} / {auroc:.3f}"
