"""Scoring a table on Ray against the local engine: the same rows whatever happens, and how fast.

A small detector is trained, and a table is written that is larger than Ray's object store (at a million rows). The local engine
scores it with one thread; Ray scores it with one and with two workers of one thread each. They take turns; medians are kept.
Then Ray scores it twice more: once a worker is killed half-way, and once `besnn score` itself is killed half-way and run again.

`seconds` is from the call to the finished output; `rows_per_second` leaves out the start, until every worker has delivered once
(workers import torch first). Every output must hold each row once, in order, with the same bits: the benchmark fails unless its
rows have the checksum of the local engine's.
"""

import hashlib
import io
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet
import ray
import torch

from benchmarks.documents import bench_record
from besnn.batch import score_file
from besnn.data import Dataset
from besnn.detector import Detector
from besnn.ray.scoring import score_on_ray
from besnn.ray.session import Cluster
from besnn.training import load_recipe, make_fabric
from besnn.training.fit import fit_detector

COLUMNS, CLASSES = 64, 5
CORES = 2
STORE_BYTES = 200 * 2**20


def measure_ray(rows: int, rounds: int) -> dict[str, Any]:
    """Return the record of all runs."""
    with tempfile.TemporaryDirectory(prefix="besnn-") as folder:
        return bench_record("ray", _measure_in(Path(folder), rows, rounds))


def _measure_in(folder: Path, rows: int, rounds: int) -> dict[str, Any]:
    model, table = train_detector(folder / "model.safetensors"), write_table(folder / "table.parquet", rows)
    local: list[dict[str, float]] = []
    shared: dict[int, list[dict[str, float]]] = {1: [], CORES: []}
    checksums = set()
    with cluster(folder / "ray") as address:
        for _ in range(rounds):
            local.append(score_locally(model, table, folder / "local.parquet"))
            checksums.add(checksum(folder / "local.parquet"))
            for workers, runs in shared.items():
                runs.append(score_with_ray(model, table, folder / "scores", workers))
                checksums.add(checksum(folder / "scores"))
                shutil.rmtree(folder / "scores")
        stopped = [
            lose_a_worker(model, table, folder / "worker", rows),
            lose_the_driver(model, table, folder / "driver", rows, address),
        ]
        checksums |= {checksum(folder / "worker"), checksum(folder / "driver")}
    base = median(run["rows_per_second"] for run in local)
    return {
        "rows": rows,
        "columns": COLUMNS,
        "table_mb": round(table.stat().st_size / 2**20),
        "object_store_mb": STORE_BYTES // 2**20,
        "rounds": rounds,
        "load_average": round(os.getloadavg()[2], 1),
        "local": typical(local, base),
        "ray": [{"workers": workers, **typical(runs, base)} for workers, runs in shared.items()],
        "stopped": stopped,
        "equal": len(checksums) == 1,
        "checksums": sorted(checksums),
    }


@contextmanager
def cluster(folder: Path) -> Iterator[str]:
    """Start Ray with two cores; yield its address."""
    # By default Ray gives its workers a low priority.
    os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112  # Ray's own spelling
    context: Any = ray.init(
        num_cpus=CORES,
        include_dashboard=False,
        object_store_memory=STORE_BYTES,
        log_to_driver=False,
        logging_level=logging.ERROR,
        _temp_dir=str(folder),
    )
    yield context.address_info["gcs_address"]
    ray.shutdown()


def score_locally(model: Path, table: Path, output: Path) -> dict[str, float]:
    """Score with the local engine and one thread."""
    detector = Detector.load(model)
    torch.set_num_threads(1)
    clock = Clock()
    score_file(detector, str(table), output, progress=clock)
    return clock.figures()


def score_with_ray(model: Path, table: Path, output: Path, workers: int) -> dict[str, float]:
    """Score with the Ray engine."""
    clock = Clock()
    with peak_memory() as peak:
        score_on_ray(model, str(table), str(output), cluster=Cluster(workers=workers), progress=clock)
    return {**clock.figures(start=workers), "worker_peak_mb": round(max(peak) / 2**20)}


def lose_a_worker(model: Path, table: Path, output: Path, rows: int) -> dict[str, object]:
    """Kill one of two workers when half of the rows are written."""
    killed: list[int] = []
    done = 0

    def watch(more: int) -> None:
        nonlocal done
        done += more
        if done >= rows / 2 and not killed:
            victim = workers_of_ray()[0]
            victim.send_signal(signal.SIGKILL)
            killed.append(done)

    score_on_ray(model, str(table), str(output), cluster=Cluster(workers=CORES), progress=watch)
    return {"killed": "a worker", "after_rows": killed[0], "rows": rows_in(output)}


def lose_the_driver(model: Path, table: Path, output: Path, rows: int, address: str) -> dict[str, object]:
    """Kill `besnn score` when half of the rows are written, and run the same command again."""
    program = Path(sys.executable).with_name("besnn")
    command = [str(part) for part in (program, "score", model, table, "-o", output, "--engine", "ray", "--address", address)]
    driver = subprocess.Popen(command)
    while driver.poll() is None and rows_in(output) < rows / 2:
        time.sleep(0.1)
    driver.kill()
    driver.wait()
    while workers_of_ray():  # Ray ends what the driver had started
        time.sleep(0.1)
    before = {path: path.stat().st_mtime_ns for path in output.glob("part-*")}
    after_rows = rows_in(output)
    subprocess.run(command, check=True)
    again = sum(path.stat().st_mtime_ns != changed for path, changed in before.items())
    return {"killed": "besnn score", "after_rows": after_rows, "parts_scored_again": again, "rows": rows_in(output)}


def rows_in(output: Path) -> int:
    """Count the rows of an output folder."""
    return sum(pa.parquet.read_metadata(part).num_rows for part in output.glob("part-*"))


def checksum(output: Path) -> str:
    """Return the SHA-256 of all rows in order, written as one parquet file."""
    file = io.BytesIO()
    table = pa.parquet.read_table(output).replace_schema_metadata(None).combine_chunks()
    pa.parquet.write_table(table, file, row_group_size=len(table))
    return hashlib.sha256(file.getbuffer()).hexdigest()


def typical(runs: list[dict[str, float]], base: float) -> dict[str, float]:
    """Return the median of each figure, and the rate relative to another one."""
    figures = {name: median(run[name] for run in runs) for name in runs[0]}
    return {**figures, "relative": round(figures["rows_per_second"] / base, 2)}


class Clock:
    """Notes when rows are finished."""

    def __init__(self) -> None:
        self.began = time.monotonic()
        self.marks: list[tuple[float, int]] = []

    def __call__(self, rows: int) -> None:
        """Note that more rows are finished."""
        if rows:
            self.marks.append((time.monotonic(), rows))

    def figures(self, start: int = 1) -> dict[str, float]:
        """Return the total seconds, and the rows per second from the `start`-th mark on."""
        (first, _), (last, _) = self.marks[start - 1], self.marks[-1]
        later = sum(rows for _, rows in self.marks[start:])
        return {"seconds": round(time.monotonic() - self.began, 1), "rows_per_second": round(later / (last - first))}


@contextmanager
def peak_memory() -> Iterator[list[int]]:
    """Watch the memory of Ray's workers; yield the list of sizes in bytes, without shared memory."""
    seen = [0]
    stop = threading.Event()

    def watch() -> None:
        while not stop.wait(0.5):
            for process in workers_of_ray():
                with suppress(psutil.Error):
                    memory = process.memory_info()
                    seen.append(memory.rss - memory.shared)

    watcher = threading.Thread(target=watch)
    watcher.start()
    yield seen
    stop.set()
    watcher.join()


def workers_of_ray() -> list[psutil.Process]:
    """Return the processes that score, found by the names that Ray gives them."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):  # the process may have ended meanwhile
            if "ChunkScorer" in " ".join(process.cmdline()):
                found.append(process)
    return found


def train_detector(path: Path) -> Path:
    """Train a detector for five Gaussian blobs, and save it."""
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
    """Write a table of noise in row groups of 100,000; every 100,003rd row is invalid."""
    schema = pa.schema([(f"x{number}", pa.float32()) for number in range(COLUMNS)])
    rng = np.random.default_rng(1)
    with pa.parquet.ParquetWriter(path, schema) as writer:
        for start in range(0, rows, 100_000):
            block = rng.normal(scale=1.5, size=(min(100_000, rows - start), COLUMNS)).astype(np.float32)
            block[(np.arange(start, start + len(block)) % 100_003) == 0, 3] = np.nan
            writer.write_table(pa.Table.from_arrays([pa.array(column) for column in block.T], schema=schema))
    return path
