"""The pages whose tables are made from the records of benchmarks."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.documents import RESULTS, ROOT, Table, bench_records, fill_in
from benchmarks.drift_delay import drift_table
from benchmarks.onnx_runtime import onnx_table
from benchmarks.scale import scale_page
from benchmarks.serve_fuzz import fuzz_table
from benchmarks.serve_load import load_table
from benchmarks.speed import speed_tables
from besnn.storage.files import atomic_path


def page_texts(results: Path = RESULTS, docs: Path = ROOT / "docs") -> dict[Path, str]:
    """Return the text of each page with its tables made anew."""

    def page(name: str, tables: list[Table]) -> tuple[Path, str]:
        return docs / name, fill_in((docs / name).read_text(encoding="utf-8"), tables)

    def each(benchmark: str, make: Callable[[dict[str, Any]], Table]) -> list[Table]:
        return [make(record) for record in bench_records(benchmark, results)]

    speed = [table for record in bench_records("speed", results) for table in speed_tables(record)]
    load = bench_records("serve-load", results)
    serving = [*([load_table(load)] if load else []), *each("serve-fuzz", fuzz_table), *each("drift-delay", drift_table)]
    pages = dict([page("speed.md", speed), page("serving.md", serving), page("export.md", each("onnx", onnx_table))])
    return pages | {docs / "scale.md": scale_page(results)}


def write_pages(results: Path | None = None) -> list[Path]:
    """Write all pages; return their paths."""
    texts = page_texts(results or RESULTS)
    for path, text in texts.items():
        with atomic_path(path) as partial:
            partial.write_text(text, encoding="utf-8")
    return list(texts)
