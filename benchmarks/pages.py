"""The pages whose tables are made from the records of benchmarks."""

from pathlib import Path

from benchmarks.documents import RESULTS, ROOT, Table, bench_records, filled_document, write_texts
from benchmarks.drift_delay import drift_table
from benchmarks.file_fuzz import file_fuzz_table
from benchmarks.first_hour import first_hour_tables
from benchmarks.onnx_runtime import onnx_table
from benchmarks.scale import ray_table, scale_tables
from benchmarks.serve_fuzz import fuzz_table
from benchmarks.serve_load import load_table
from benchmarks.soak import soak_table
from benchmarks.speed import speed_tables
from benchmarks.tables.suite import suite_tables


def page_texts(results: Path = RESULTS, docs: Path = ROOT / "docs") -> dict[Path, str]:
    """Return the text of each page with its tables made anew."""
    made_by = {
        "serve-fuzz": fuzz_table,
        "file-fuzz": file_fuzz_table,
        "soak": soak_table,
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
            *each["drift-delay"],
        ],
        "export.md": each["onnx"],
        "guide-images.md": first_hour_tables(results),
        "scale.md": [*scale_tables(results), *each["ray"]],
        "tables.md": [table for record in bench_records("table-suite-reported", results) for table in suite_tables(record)],
    }
    return {docs / name: filled_document(docs / name, tables) for name, tables in pages.items()}


def write_pages(results: Path | None = None) -> list[Path]:
    """Write all pages; return their paths."""
    texts = page_texts(results or RESULTS)
    write_texts(texts)
    return list(texts)
