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
LIMIT_MB = 300


def measure_table_memory(rows: int) -> dict[str, Any]:
    """Score tables of `rows` and of a hundredth as many rows; return the record."""
    with tempfile.TemporaryDirectory() as name:
        model = _train(Path(name))
        runs = [_measure_table(model, suffix, count) for suffix in ("parquet", "csv") for count in (rows // 100, rows)]
    from benchmarks.documents import bench_record

    return bench_record("memory", {"columns": COLUMNS, "limit_mb": LIMIT_MB, "runs": runs})


def _measure_table(model: Path, suffix: str, rows: int) -> dict[str, Any]:
    table = _write_table(model.with_name(f"table.{suffix}"), rows)
    child = [sys.executable, "-m", "benchmarks.table_memory", model, table, model.with_name(f"scores.{suffix}")]
    done = subprocess.run([str(part) for part in child], capture_output=True, text=True, check=True)
    figures: dict[str, Any] = {"format": suffix, "rows": rows, "table_mb": round(table.stat().st_size / 2**20, 1)}
    table.unlink()
    figures |= json.loads(done.stdout.splitlines()[-1])
    return figures


def _train(folder: Path) -> Path:
    """Train a detector by the `table` recipe, in a process of its own."""
    table, model = _write_table(folder / "training.csv", 5000, labelled=True), folder / "model.safetensors"
    command = [sys.executable, "-m", "besnn", "train", table, "-o", model, "--epochs", "2", "--quiet"]
    subprocess.run([str(part) for part in command], check=True)
    return model


def _write_table(path: Path, rows: int, labelled: bool = False) -> Path:
    from besnn.batch import table_writer

    batches = _make_rows(rows, labelled)
    first = next(batches)
    with table_writer(path, first.schema) as write:
        write(first)
        for batch in batches:
            write(batch)
    return path


def _make_rows(rows: int, labelled: bool) -> Iterator["pa.RecordBatch"]:
    """Yield two clusters in parts of 10,000 rows."""
    import numpy as np
    import pyarrow as pa

    rng = np.random.default_rng(0)
    for start in range(0, rows, 10_000):
        labels = rng.integers(0, 2, min(10_000, rows - start))
        values = rng.normal(labels[:, None] * 2.0, 1.0, (len(labels), COLUMNS))
        columns = {f"column {place}": values[:, place] for place in range(COLUMNS)}
        yield pa.RecordBatch.from_pydict(columns | ({"label": labels} if labelled else {}))


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
