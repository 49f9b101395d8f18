"""The README's table: BE-SNN, the paper's figures and a plain softmax network, in six rows."""

from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.documents import Table, bench_records
from experiments.paper import NOT_RUN, PAPER_SCORE, TABLE_1
from experiments.records import Record, of_experiment, spread

TITLE = "Results in short"
SETS = {"fashion-mnist": ("mnist", "not-mnist"), "cifar10": ("svhn",)}
HEADER = ("FPR95 ↓ / AUROC ↑", "FashionMNIST accuracy", "vs MNIST", "vs NotMNIST", "CIFAR-10 accuracy", "vs SVHN")

ChooseScore = Callable[[Record], str]
Cells = tuple[str, ...]


def readme_table(records: Sequence[Record], results: Path) -> Table:
    """Make the table from Table 1's records, with the speed in its note; without such records it has no rows."""
    records = of_experiment(records, "table1")
    defaults = {run.in_name: run.default_score for run in records if run.method == "be-snn"}
    rows = [
        _published("BE-SNN, the paper's figures", "be-snn"),
        _measured("BE-SNN by the paper's score", records, "be-snn", lambda run: PAPER_SCORE),
        _measured("BE-SNN by besnn's default score", records, "be-snn", lambda run: run.default_score),
        _published("Softmax network, the paper's figures", "softmax"),
        _measured("Softmax network by its entropy", records, "softmax", lambda run: run.default_score),
        _measured("Softmax network by besnn's default score", records, "softmax", lambda run: defaults[run.in_name]),
    ]
    seeds = len({record.seed for record in records})
    note = (
        f"Means over {seeds} seeds. FPR95 is the share of unknown inputs accepted when 95 % of known inputs are accepted. "
        f"The default score is {' and '.join(f'{score} on {name}' for name, score in defaults.items())}. {_speed(results)}"
    )
    return Table(TITLE, HEADER, rows if records else [], note.rstrip())


def _published(name: str, method: str) -> Cells:
    cells = [name]
    for known, unknown in SETS.items():
        rows = {row.out: row for row in TABLE_1 if (row.in_name, row.method) == (known, method)}
        cells.append(_percent(next(iter(rows.values())).accuracy.mean))
        cells += [_pair(rows[out].fpr95.mean, rows[out].auroc.mean) for out in unknown]
    return tuple(cells)


def _measured(name: str, records: Sequence[Record], method: str, choose_score: ChooseScore) -> Cells:
    cells = [name]
    for known, unknown in SETS.items():
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
