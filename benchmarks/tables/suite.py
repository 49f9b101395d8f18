"""Running the suite: each detector on each task of each table, in processes of their own; and the tables made of records."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.documents import Table as Page
from benchmarks.documents import bench_record
from benchmarks.tables.detectors import ALPHA, BESNN, BOOSTING, CLASSIFIERS, DETECTORS
from benchmarks.tables.sets import DEVELOPMENT, REPORTED, load_table
from benchmarks.tables.tasks import SEEDS as SEEDS
from benchmarks.tables.tasks import tasks_of
from besnn.detection.conformal import conformal_rank, false_alarm_range

HALVES = {"development": DEVELOPMENT, "reported": REPORTED}
Row = dict[str, Any]

_load = cache(load_table)


def measure(name: str, seed: int, detector: str, data_dir: Path | None) -> list[Row]:
    """Fit a detector to each task of a table; return one row per task and kind of unknown rows."""
    import torch

    torch.set_num_threads(1)
    rows: list[Row] = []
    for task in tasks_of(_load(name, data_dir), seed):
        if detector == BOOSTING and task.name != "disturbed":
            continue  # it is here for its accuracy on all classes
        answer = DETECTORS[detector](task.training, seed)
        known = answer(task.known)
        common: Row = {"table": name, "seed": seed, "detector": detector, "task": task.name}
        if known.labels is not None:
            common["accuracy"] = round(float((known.labels == task.known.labels).mean()), 4)
        if known.alarms is not None:
            common |= {"alarms": int(known.alarms.sum()), "known": len(task.known), "calibrated": known.calibrated}
        for kind, unknown in task.unknown.items():
            rows.append({**common, "kind": kind, "auroc": round(_auroc(known.scores, answer(unknown).scores), 4)})
    return rows


def _auroc(known: Any, unknown: Any) -> float:
    from besnn.evaluation import ood_metrics

    return float(ood_metrics(np.asarray(known, np.float64), np.asarray(unknown, np.float64))["auroc"])


def run_suite(
    half: str,
    detectors: Sequence[str],
    seeds: Sequence[int],
    jobs: int,
    data_dir: Path | None,
    earlier: Mapping[str, Any],
    say: Callable[[str], None],
    keep: Callable[[dict[str, Any]], None],
    tables: Sequence[str] = (),
) -> dict[str, Any]:
    """Run detectors on the tables of one half; rows of an earlier record stay unless they are measured again.

    `keep` gets the record so far after each job, so that a run that is stopped loses little.
    """
    names = [name for name in HALVES[half] if not tables or name in tables]
    work = [(name, seed, detector) for detector in detectors for seed in seeds for name in names]
    rows = [row for row in earlier.get("rows", ()) if (row["table"], row["seed"], row["detector"]) not in set(work)]
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        started = {pool.submit(measure, *each, data_dir): each for each in work}
        for number, done in enumerate(as_completed(started), start=1):
            rows += done.result()
            say(f"{number} of {len(work)}: {', '.join(map(str, started[done]))}")
            keep(suite_record(half, rows))
    return suite_record(half, rows)


def suite_record(half: str, rows: Iterable[Row]) -> dict[str, Any]:
    """Return the record of one half: all rows, in one order."""
    order = {name: place for place, name in enumerate(DETECTORS)}
    ordered = sorted(rows, key=lambda row: (order[row["detector"]], row["table"], row["seed"], row["task"], row["kind"]))
    return bench_record("table-suite", {"half": half, "rows": ordered})


def by_table(rows: Iterable[Row], field: str = "auroc") -> dict[str, dict[str, float]]:
    """Average a field over tasks, kinds and seeds: `{detector: {table: mean}}`; each kind of unknown rows counts the same."""
    found: dict[tuple[str, str], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        if field in row:
            found[row["detector"], row["table"]][row["kind"]].append(row[field])
    means: dict[str, dict[str, float]] = defaultdict(dict)
    for (detector, table), kinds in found.items():
        means[detector][table] = float(np.mean([np.mean(values) for values in kinds.values()]))
    return dict(means)


def ranks(means: Mapping[str, Mapping[str, float]], tables: Sequence[str]) -> dict[str, float]:
    """Return each detector's mean rank over tables, 1 for the best; equal ones share their ranks' mean."""
    from scipy.stats import rankdata

    each = [rankdata([-means[detector][table] for detector in means]) for table in tables]
    return dict(zip(means, np.mean(each, axis=0).tolist(), strict=True))


def suite_tables(record: Mapping[str, Any]) -> list[Page]:
    """Return the tables of docs/tables.md for one half."""
    tables, half = HALVES[record["half"]], record["half"]
    means = {name: each for name, each in by_table(record["rows"]).items() if name != BOOSTING and set(each) >= set(tables)}
    rank = ranks(means, tables)
    best = {table: max(each[table] for each in means.values()) for table in tables}
    lines = []
    for name in sorted(means, key=lambda name: rank[name]):
        cells = [f"**{means[name][t]:.3f}**" if means[name][t] == best[t] else f"{means[name][t]:.3f}" for t in tables]
        lines.append((name, *cells, f"{np.mean([means[name][t] for t in tables]):.3f}", f"{rank[name]:.1f}"))
    seeds = len({row["seed"] for row in record["rows"] if row["detector"] == BESNN})
    note = f"AUROC, with the same weight for each kind of unknown rows, over {seeds} seeds; last, the means of AUROC and rank."
    return [
        Page(f"Unknown rows, {half} tables", ("Detector", *tables, "mean", "rank"), lines, note),
        _kinds_table(record, half),
        _classes_table(record, half, tables),
    ]


def _kinds_table(record: Mapping[str, Any], half: str) -> Page:
    """Return the AUROC by kind of unknown rows, averaged over tables."""
    found: dict[tuple[str, str], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in record["rows"]:
        if row["detector"] != BOOSTING:
            found[row["detector"], row["kind"]][row["table"]].append(row["auroc"])
    kinds = list(dict.fromkeys(kind for _, kind in found))
    lines = []
    for name in dict.fromkeys(detector for detector, _ in found):
        cells = [f"{np.mean([np.mean(each) for each in found[name, kind].values()]):.3f}" for kind in kinds]
        lines.append((name, *cells))
    note = "Mean AUROC over tables; `class` is a class left out of training, each one once."
    return Page(f"Kinds of unknown rows, {half} tables", ("Detector", *kinds), lines, note)


def _classes_table(record: Mapping[str, Any], half: str, tables: Sequence[str]) -> Page:
    """Return accuracy on all classes, and besnn's false alarms beside what chance explains."""
    whole = [row for row in record["rows"] if row["task"] == "disturbed"]
    means = by_table(whole, "accuracy")
    lines = []
    for name in (BESNN, *CLASSIFIERS):
        if set(means.get(name, {})) >= set(tables):
            cells = [f"{means[name][table]:.3f}" for table in tables]
            lines.append((f"accuracy, {name}", *cells, f"{np.mean([means[name][table] for table in tables]):.3f}"))
    rates, inside = false_alarms(record["rows"])
    lines.append(("false alarms, besnn", *(f"{rates[table]:.3f}" for table in tables), f"{np.mean(list(rates.values())):.3f}"))
    runs = f"{inside[0]} of {inside[1]} runs have as many false alarms as chance explains in 19 of 20"
    note = f"Accuracy on all classes. False alarms are at α = 0.05, over all tasks and seeds; {runs} (beta-binomial)."
    return Page(f"Classes and false alarms, {half} tables", ("", *tables, "mean"), lines, note)


def false_alarms(rows: Iterable[Row]) -> tuple[dict[str, float], tuple[int, int]]:
    """Return besnn's rate of false alarms by table, and how many of all runs are inside the exact 95 % range."""
    runs = {(row["table"], row["seed"], row["task"]): row for row in rows if row["detector"] == BESNN}
    counts: dict[str, list[tuple[int, int]]] = defaultdict(list)
    inside = 0
    for (table, _, _), row in runs.items():
        counts[table].append((row["alarms"], row["known"]))
        calibrated = row["calibrated"]
        low, high = false_alarm_range(calibrated, conformal_rank(calibrated, ALPHA), row["known"])
        inside += low <= row["alarms"] <= high
    rates = {table: sum(a for a, _ in each) / sum(n for _, n in each) for table, each in counts.items()}
    return rates, (inside, len(runs))
