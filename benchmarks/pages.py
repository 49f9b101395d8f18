"""The pages whose tables are made from the records of benchmarks."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.documents import RESULTS, ROOT, Table, bench_records, filled_document, write_texts
from benchmarks.drift_delay import drift_table
from benchmarks.file_fuzz import file_fuzz_table
from benchmarks.first_hour import first_hour_tables
from benchmarks.kills import kills_table
from benchmarks.onnx_runtime import onnx_table
from benchmarks.serve_fuzz import fuzz_table
from benchmarks.serve_load import load_table
from benchmarks.soak import soak_table
from benchmarks.speed import speed_tables
from benchmarks.tables.suite import suite_tables
from besnn.errors import DataError


def page_texts(results: Path = RESULTS, docs: Path = ROOT / "docs") -> dict[Path, str]:
    """Return the text of each page with its tables made anew."""
    made_by = {
        "serve-fuzz": fuzz_table,
        "file-fuzz": file_fuzz_table,
        "soak": soak_table,
        "kills": kills_table,
        "drift-delay": drift_table,
        "onnx": onnx_table,
        "ray": ray_table,
    }
    each = {name: [make(record) for record in bench_records(name, results)] for name, make in made_by.items()}
    load = bench_records("serve-load", results)
    pages: dict[str, list[Table]] = {
        "speed.md": [table for record in bench_records("speed", results) for table in speed_tables(record)],
        "serving.md": [
            *([load_table(load)] if load else []),
            *each["serve-fuzz"],
            *each["file-fuzz"],
            *each["soak"],
            *each["kills"],
            *each["drift-delay"],
        ],
        "export.md": each["onnx"],
        "guide-images.md": first_hour_tables(results),
        "scale.md": each["ray"],
        "tables.md": [table for record in bench_records("table-suite-reported", results) for table in suite_tables(record)],
    }
    return {docs / name: filled_document(docs / name, tables) for name, tables in pages.items()}


def write_pages(results: Path | None = None) -> list[Path]:
    """Write all pages; return their paths."""
    texts = page_texts(results or RESULTS)
    write_texts(texts)
    return list(texts)


def ray_table(record: Mapping[str, Any]) -> Table:
    """Return the table of `python -m benchmarks ray` for docs/scale.md: one row per engine."""
    if not record["equal"]:
        raise DataError("results/bench/ray.json: the outputs of the two engines differ; find out why first")
    rows = []
    for each in [record["local"], *record["ray"]]:
        label = f"Ray, workers: {each['workers']}" if "workers" in each else "local, one thread"
        memory = f"{each['worker_peak_mb']:.0f} MB" if "worker_peak_mb" in each else ""
        rows.append((label, f"{each['rows_per_second']:,.0f}", f"{each['relative']}", f"{each['seconds']}", memory))
    worker, driver = record["stopped"]
    note = (
        f"{record['rows']:,} rows of {record['columns']} columns ({record['table_mb']} MB), with an object store of "
        f"{record['object_store_mb']} MB: medians of {record['rounds']} rounds on two cores, at a load average of "
        f"{record['load_average']}. Rates leave out the start, in which workers import torch. In one more run a worker was "
        f"killed after {worker['after_rows']:,} rows. In another, `besnn score` itself was killed after "
        f"{driver['after_rows']:,} rows and started again; it scored {driver['parts_scored_again']} parts a second time. The "
        f"rows of all outputs have the same SHA-256: `{record['checksums'][0]}`."
    )
    header = ("Engine", "Rows per second", "Relative", "Seconds with the start", "Peak memory of a worker")
    return Table("Scoring a table on Ray", header, rows, note)
