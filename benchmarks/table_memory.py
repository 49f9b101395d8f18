"""Peak memory of `besnn score` on a million rows of a table: it must not grow with the table.

    python benchmarks/score_memory.py [--rows 1000000] [--json FILE]

A small detector is trained, a table is written a part at a time, and a fresh process scores it. Reported is that process's
peak resident memory, before and after: what the imports and the model need, and what scoring adds.
"""

import argparse
import json
import platform
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

COLUMNS = 10
LIMIT_MB = 300


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--formats", nargs="+", default=["parquet", "csv"], choices=["parquet", "csv"])
    parser.add_argument("--json", type=Path, help="where to write the figures")
    parser.add_argument("--child", nargs=3, metavar=("MODEL", "TABLE", "SCORES"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        print(json.dumps(score(*map(Path, arguments.child))))
        return
    figures = measure(arguments.rows, arguments.formats)
    print(json.dumps(figures, indent=1))
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    sys.exit(any(figure["added_mb"] > LIMIT_MB for figure in figures["runs"]))


def measure(rows: int, formats: list[str]) -> dict[str, object]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        train(folder)
        runs = []
        for suffix in formats:
            for count in (rows // 100, rows):
                table = write_table(folder / f"table.{suffix}", count)
                child = [sys.executable, __file__, "--child", folder / "model.safetensors", table, folder / f"scores.{suffix}"]
                done = subprocess.run([str(part) for part in child], capture_output=True, text=True, check=True)
                runs.append({"format": suffix, "rows": count, "table_mb": round(table.stat().st_size / 2**20, 1)})
                runs[-1] |= json.loads(done.stdout.splitlines()[-1])
                table.unlink()
    return {"columns": COLUMNS, "limit_mb": LIMIT_MB, "machine": platform.machine(), "runs": runs}


def train(folder: Path) -> None:
    """A detector by the `table` recipe, in a process of its own."""
    table = write_table(folder / "training.csv", 5000, labelled=True)
    besnn = Path(sys.executable).with_name("besnn")
    command = [besnn, "train", table, "-o", folder / "model.safetensors", "--epochs", "2", "--quiet"]
    subprocess.run([str(part) for part in command], check=True)


def write_table(path: Path, rows: int, labelled: bool = False) -> Path:
    from besnn.writers import table_writer

    batches = make_rows(rows, labelled)
    first = next(batches)
    with table_writer(path, first.schema) as write:
        write(first)
        for batch in batches:
            write(batch)
    return path


def make_rows(rows: int, labelled: bool) -> Iterator:
    """Two clusters, a part at a time."""
    import numpy as np
    import pyarrow as pa

    rng = np.random.default_rng(0)
    for start in range(0, rows, 10_000):
        labels = rng.integers(0, 2, min(10_000, rows - start))
        values = rng.normal(labels[:, None] * 2.0, 1.0, (len(labels), COLUMNS))
        columns = {f"column {place}": values[:, place] for place in range(COLUMNS)}
        yield pa.RecordBatch.from_pydict(columns | ({"label": labels} if labelled else {}))


def score(model: Path, table: Path, target: Path) -> dict[str, float]:
    """Scores in this process; what `besnn score` does, with a look at the memory before it."""
    from besnn.batch import score_file
    from besnn.detector import Detector

    detector = Detector.load(model)
    before, began = peak_mb(), time.perf_counter()
    tally = score_file(detector, str(table), target)
    seconds = time.perf_counter() - began
    assert tally.failed == 0
    added = peak_mb() - before
    return {"imports_mb": before, "added_mb": round(added, 1), "seconds": round(seconds, 1)}


def peak_mb() -> float:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return round(peak / (2**20 if sys.platform == "darwin" else 2**10), 1)


if __name__ == "__main__":
    main()
