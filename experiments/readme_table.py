"""The README's table: BE-SNN, the paper's figures and a plain softmax network, in six rows."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from experiments.comparison import NOT_RUN, PAPER_SCORE, Row
from experiments.paper import TABLE_1
from experiments.records import Record, load_records, spread
from experiments.rendering import Table

TITLE = "Results in short"
SETS = {"fashion-mnist": ("mnist", "not-mnist"), "cifar10": ("svhn",)}
HEADER = ("FPR95 ↓ / AUROC ↑", "FashionMNIST accuracy", "vs MNIST", "vs NotMNIST", "CIFAR-10 accuracy", "vs SVHN")

ChooseScore = Callable[[Record], str]


def readme_table(results: Path) -> Table:
    """Make the table from Table 1's records, with the speed in its note; without such records it has no rows."""
    records = [record for record in load_records(results) if record.setting.experiment == "table1"]
    defaults = {run.setting.in_name: run.default_score for run in records if run.setting.method == "be-snn"}
    rows = [
        _published("BE-SNN, the paper's figures", "be-snn"),
        _measured("BE-SNN by the paper's score", records, "be-snn", lambda run: PAPER_SCORE),
        _measured("BE-SNN by besnn's default score", records, "be-snn", lambda run: run.default_score),
        _published("Softmax network, the paper's figures", "softmax"),
        _measured("Softmax network by its entropy", records, "softmax", lambda run: run.default_score),
        _measured("Softmax network by besnn's default score", records, "softmax", lambda run: defaults[run.setting.in_name]),
    ]
    seeds = len({record.seed for record in records})
    note = (
        f"Means over {seeds} seeds. FPR95 is the share of unknown inputs accepted when 95 % of known inputs are accepted. "
        f"The default score is {' and '.join(f'{score} on {name}' for name, score in defaults.items())}. {_speed(results)}"
    )
    return Table(TITLE, HEADER, 1, rows if records else [], note.rstrip())


def _published(name: str, method: str) -> Row:
    cells = [name]
    for known, unknown in SETS.items():
        lines = {line.out: line for line in TABLE_1 if (line.in_name, line.method) == (known, method)}
        cells.append(_percent(next(iter(lines.values())).accuracy.mean))
        cells += [_pair(lines[out].fpr95.mean, lines[out].auroc.mean) for out in unknown]
    return Row(tuple(cells), published=True)


def _measured(name: str, records: Sequence[Record], method: str, choose_score: ChooseScore) -> Row:
    cells = [name]
    for known, unknown in SETS.items():
        runs = [run for run in records if (run.setting.in_name, run.setting.method) == (known, method)]
        cells.append(_percent(spread([run.accuracy for run in runs]).mean) if runs else NOT_RUN)
        for out in unknown:
            found = [sets[out] for run in runs if out in (sets := run.scores.get(choose_score(run), {}))]
            means = [spread([float(each[figure]) for each in found]).mean for figure in ("fpr95", "auroc")] if found else []
            cells.append(_pair(*means) if means else NOT_RUN)
    return Row(tuple(cells))


def _speed(results: Path) -> str:
    """Return how long four members take beside a deep ensemble of four, by hardware; nothing if that was not timed."""
    ratios = {}
    for path in sorted(results.glob("bench/*.json")):
        record: Mapping[str, object] = json.loads(path.read_text(encoding="utf-8"))
        targets = record.get("targets", [])
        assert isinstance(targets, list)
        for target in targets:
            if (target["work"], target["claim"]) == ("score 500 images", "time over a deep ensemble's"):
                ratios[str(record["variant"])] = float(target["value"])
    if not ratios:
        return ""
    times = "; ".join(f"{ratio:.2f} on {hardware}" for hardware, ratio in ratios.items())
    return f"Four members score 500 images in a fraction of the time of a deep ensemble of four: {times}."


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _pair(fpr95: float, auroc: float) -> str:
    return f"{fpr95:.3f} / {auroc:.3f}"
