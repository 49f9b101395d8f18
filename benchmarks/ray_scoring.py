"""Scoring a table on Ray against the local engine: the same bits, and how fast with one and two workers.

    python benchmarks/ray_scoring.py [--rows 1000000] [--json FILE]

A small detector is trained and a table is written that is larger than Ray's object store (200 MB at a million rows). The local
engine scores it with one thread and with all cores; Ray scores it with one and with two workers of one thread each. `seconds`
is from the call to the finished output; `rows_per_second` leaves out what comes before the first part (starting workers, which
import torch). The run fails if a single bit of a score differs.
"""

import argparse
import json
import logging
import os
import platform
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet
import ray
import torch

from besnn.data import Dataset
from besnn.deployment.batch import score_file
from besnn.deployment.cluster.scoring import score_on_ray
from besnn.detector import Detector
from besnn.fitting import fit_detector
from besnn.training import load_recipe, make_fabric

COLUMNS, CLASSES = 64, 5
STORE_BYTES = 200 * 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--json", type=Path, help="where to write the figures")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="besnn-") as name:
        figures = measure(Path(name), arguments.rows)
    print(json.dumps(figures, indent=1))
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    sys.exit(not all(run["equal"] for run in figures["ray"]))


def measure(folder: Path, rows: int) -> dict[str, object]:
    model, table = train(folder / "model.safetensors"), write_table(folder / "table.parquet", rows)
    figures: dict[str, object] = {
        "rows": rows,
        "columns": COLUMNS,
        "table_mb": round(table.stat().st_size / 2**20),
        "object_store_mb": STORE_BYTES // 2**20,
        "cores": os.cpu_count(),
        "machine": platform.machine(),
    }
    figures["local"] = [score_locally(model, table, folder / "local.parquet", threads) for threads in (1, os.cpu_count() or 1)]
    expected = pa.parquet.read_table(folder / "local.parquet")
    ray.init(
        num_cpus=2,
        include_dashboard=False,
        object_store_memory=STORE_BYTES,
        log_to_driver=False,
        logging_level=logging.ERROR,
        _temp_dir=str(folder / "ray"),
    )
    figures["ray"] = []
    for workers in (1, 2):
        output = folder / "scores"
        run = score_with_ray(model, table, output, workers)
        run["equal"] = pa.parquet.read_table(output).replace_schema_metadata(None).equals(expected)
        figures["ray"].append(run)
        shutil.rmtree(output)
    ray.shutdown()
    return figures


def score_locally(model: Path, table: Path, output: Path, threads: int) -> dict[str, object]:
    detector = Detector.load(model)
    torch.set_num_threads(threads)
    clock = Clock()
    score_file(detector, str(table), output, progress=clock)
    return {"threads": threads, **clock.figures()}


def score_with_ray(model: Path, table: Path, output: Path, workers: int) -> dict[str, object]:
    clock = Clock()
    with peak_memory("ChunkScorer") as peak:
        score_on_ray(model, str(table), str(output), workers=workers, progress=clock)
    return {"workers": workers, **clock.figures(), "worker_peak_mb": round(max(peak.values()) / 2**20)}


class Clock:
    """Told of rows as they are done."""

    def __init__(self) -> None:
        self.began = time.monotonic()
        self.marks: list[tuple[float, int]] = []

    def __call__(self, rows: int) -> None:
        """Some more rows."""
        if rows:
            self.marks.append((time.monotonic(), rows))

    def figures(self) -> dict[str, object]:
        """Seconds in all, and rows a second from the first mark on."""
        (first, _), (last, _) = self.marks[0], self.marks[-1]
        later = sum(rows for _, rows in self.marks[1:])
        return {"seconds": round(time.monotonic() - self.began, 1), "rows_per_second": round(later / (last - first))}


@contextmanager
def peak_memory(name: str) -> Iterator[dict[int, int]]:
    """The largest memory of each process of that name, in bytes without what it shares with others."""
    peak: dict[int, int] = {0: 0}
    stop = threading.Event()

    def watch() -> None:
        while not stop.wait(0.5):
            for process in psutil.process_iter():
                try:
                    if name in " ".join(process.cmdline()):
                        memory = process.memory_info()
                        peak[process.pid] = max(peak.get(process.pid, 0), memory.rss - memory.shared)
                except psutil.Error:
                    continue

    watcher = threading.Thread(target=watch)
    watcher.start()
    yield peak
    stop.set()
    watcher.join()


def train(path: Path) -> Path:
    """A detector of five blobs."""
    rng = np.random.default_rng(0)
    labels = np.arange(4000) % CLASSES
    inputs = (rng.normal(size=(CLASSES, COLUMNS))[labels] + rng.normal(size=(4000, COLUMNS))).astype(np.float32)
    names = tuple(f"class {number}" for number in range(CLASSES))
    columns = tuple(f"x{number}" for number in range(COLUMNS))
    data = Dataset(inputs, labels, names, "blobs", feature_names=columns)
    recipe = load_recipe("table", ["data.source=blobs", "training.epochs=2"])
    fit_detector(recipe, data, fabric=make_fabric(accelerator="cpu")).detector.save(path)
    return path


def write_table(path: Path, rows: int) -> Path:
    """A table of noise, of which every 100,003rd row is bad, in row groups of 100,000."""
    schema = pa.schema([(f"x{number}", pa.float32()) for number in range(COLUMNS)])
    rng = np.random.default_rng(1)
    with pa.parquet.ParquetWriter(path, schema) as writer:
        for start in range(0, rows, 100_000):
            block = rng.normal(scale=1.5, size=(min(100_000, rows - start), COLUMNS)).astype(np.float32)
            block[(np.arange(start, start + len(block)) % 100_003) == 0, 3] = np.nan
            writer.write_table(pa.Table.from_arrays([pa.array(column) for column in block.T], schema=schema))
    return path


if __name__ == "__main__":
    main()
