"""Peak memory of `besnn score` on a million rows of a table, which must not grow with the table.

A small detector is trained, a table is written in parts, and a fresh process scores it. The record holds that process's peak
resident memory before scoring (imports and the model) and what scoring adds. A process inherits its parent's peak, so this
module imports besnn only where it is needed.
"""

import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

COLUMNS = 10
FORMATS = ("parquet", "csv")
LIMIT_MB = 300


def measure_table_memory(rows: int) -> dict[str, Any]:
    """Score tables of `rows` and of a hundredth as many rows; return the record."""
    with tempfile.TemporaryDirectory() as name:
        model = Path(name) / "model.safetensors"
        training = _write_table(model.with_name("training.csv"), 1000)
        _run("-m", "besnn", "train", training, "-o", model, "--epochs", 2, "--quiet")
        runs = [_measure_table(model, suffix, count) for suffix in FORMATS for count in (rows // 100, rows)]
    from benchmarks.documents import bench_record

    return bench_record("memory", {"columns": COLUMNS, "limit_mb": LIMIT_MB, "runs": runs})


def _measure_table(model: Path, suffix: str, rows: int) -> dict[str, Any]:
    table = _write_table(model.with_name(f"table.{suffix}"), rows)
    printed = _run("-m", "benchmarks.table_memory", model, table, model.with_name(f"scores.{suffix}"))
    figures: dict[str, Any] = {"format": suffix, "rows": rows, "table_mb": round(table.stat().st_size / 2**20, 1)}
    table.unlink()
    figures |= json.loads(printed.splitlines()[-1])
    return figures


def _run(*arguments: object) -> str:
    """Run Python in a process of its own; return what it prints."""
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout


def _write_table(path: Path, rows: int) -> Path:
    from besnn.batch import table_writer

    batches = _make_rows(rows)
    first = next(batches)
    with table_writer(path, first.schema) as write:
        write(first)
        for batch in batches:
            write(batch)
    return path


def _make_rows(rows: int) -> Iterator["pa.RecordBatch"]:
    """Yield two labelled clusters in parts of 10,000 rows."""
    import numpy as np
    import pyarrow as pa

    rng = np.random.default_rng(0)
    for start in range(0, rows, 10_000):
        labels = rng.integers(0, 2, min(10_000, rows - start))
        values = rng.normal(labels[:, None] * 2.0, 1.0, (len(labels), COLUMNS))
        columns = {f"column {place}": values[:, place] for place in range(COLUMNS)}
        yield pa.RecordBatch.from_pydict(columns | {"label": labels})


def score_in_this_process(model: Path, table: Path, target: Path) -> dict[str, float]:
    """Score a table as `besnn score` does, and return the peak memory before and what scoring adds."""
    from besnn.batch import score_file
    from besnn.detector import Detector

    detector = Detector.load(model)
    before, began = peak_mb(), time.perf_counter()
    tally = score_file(detector, str(table), target)
    seconds = time.perf_counter() - began
    assert tally.failed == 0
    return {"imports_mb": before, "added_mb": round(peak_mb() - before, 1), "seconds": round(seconds, 1)}


def peak_mb() -> float:
    """Return the peak resident memory of this process in MiB."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return round(peak / (2**20 if sys.platform == "darwin" else 2**10), 1)


if __name__ == "__main__":
    print(json.dumps(score_in_this_process(*map(Path, sys.argv[1:]))))
