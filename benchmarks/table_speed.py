"""Rows on tables: how long the default estimator takes to fit, and to decide about rows."""

import time
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.datasets import make_classification

from benchmarks.findings import Figure, Findings, Setting, Target
from benchmarks.timing import Timing, take_turns
from besnn import BESNNClassifier

COLUMNS, FEW_COLUMNS = 50, 20
SECONDS_PER_ROW = (20 / 10_000, 120 / 100_000)  # the aims for few rows, and for many
ROWS_PER_SECOND = 100_000  # the aim, for one core


def fit_and_score_tables(setting: Setting) -> Findings:
    """Time fits of tables that are made up, and decisions about their rows by one thread."""
    findings, fitted = Findings(), {}
    for rows, aim in zip(setting.table_rows, SECONDS_PER_ROW, strict=True):
        X, y = _table(rows, COLUMNS)
        work, began = f"fit {rows:,} rows of {COLUMNS} columns", time.perf_counter()
        classifier = BESNNClassifier(random_state=0).fit(X, y)
        timing = Timing.of([time.perf_counter() - began])
        findings.figures.append(Figure(work, "be-snn", "BESNNClassifier()", timing, members=classifier.members))
        findings.targets.append(Target(work, "seconds", timing.seconds, aim * rows))
        fitted[COLUMNS] = classifier, X
    rows = setting.table_rows[0]
    X, y = _table(rows, FEW_COLUMNS)
    fitted[FEW_COLUMNS] = BESNNClassifier(random_state=0).fit(X, y), X
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for columns, (classifier, X) in sorted(fitted.items()):
            work = f"decide about {rows:,} rows of {columns} columns, one thread"
            run = partial(classifier.is_ood, X[:rows])
            timing = take_turns({"is_ood": run}, setting.device, setting.rounds, warm_up=1)["is_ood"]
            findings.figures.append(Figure(work, "be-snn", "is_ood", timing, members=classifier.members))
            findings.targets.append(Target(work, "microseconds per row", 1e6 * timing.seconds / rows, 1e6 / ROWS_PER_SECOND))
    finally:
        torch.set_num_threads(threads)
    return findings


def _table(rows: int, columns: int) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    X, y = make_classification(rows, columns, n_informative=columns // 2, n_classes=5, random_state=0)
    return X, y
