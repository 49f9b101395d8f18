"""The records of `python -m benchmarks` as tables: on a terminal, and in documents."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.run import BENCH
from besnn.evaluation.wording import method_name
from besnn.storage.files import atomic_path
from besnn.training.record import read_record
from experiments.comparison import Row
from experiments.documents import fill_in
from experiments.rendering import Table, as_markdown

FIGURES = ("Work", "Method", "N", "How", "Milliseconds", "Quartiles", "Floor")
TARGETS = ("Work", "Target", "Measured", "At most", "Met")
_TARGET_NOTE = "Ratios and milliseconds of the medians above; bytes of files."
CHECKS = ("Work", "Compared with", "Error", "At most")


def as_text(record: Mapping[str, Any]) -> str:
    """A record as one page of tables.

    >>> print(as_text({"figures": [], "targets": [], "checks": [], "left_out": ["a: why"], "rates": _RATES, **_WHERE}))
    ... # doctest: +ELLIPSIS
    ### Time on a machine...
    """
    return "\n".join([*map(as_markdown, bench_tables(record)), *(f"left out: {reason}" for reason in record["left_out"])])


_RATES = {"type": "float32", "flops": 1e12, "bytes": 1e10}
_WHERE = {"provenance": {"hardware": "a machine"}}


def bench_tables(record: Mapping[str, Any]) -> list[Table]:
    """Times, targets and checks of one run."""
    where, rates = record["provenance"]["hardware"], record["rates"]
    note = (
        "Median and quartiles over rounds, in which all take turns. Floor: operations over the "
        f"{rates['flops'] / 1e12:.3g} TFLOP/s that a matrix product or convolution in {rates['type']} reached here, or bytes "
        f"over the {rates['bytes'] / 1e9:.3g} GB/s of a copy, whichever takes longer."
    )
    return [
        Table(f"Time on {where}", FIGURES, 4, [Row(_figure_cells(figure)) for figure in record["figures"]], note),
        Table(f"Targets on {where}", TARGETS, 2, [Row(_target_cells(target)) for target in record["targets"]], _TARGET_NOTE),
        Table(f"Checks on {where}", CHECKS, 2, [Row(_check_cells(check)) for check in record["checks"]], "Largest errors."),
    ]


def update_documents(results: Path, documents: Sequence[Path]) -> Sequence[Path]:
    """Puts the tables of all runs under `results/bench` into Markdown documents that have places for them."""
    tables = [table for path in sorted((results / BENCH).glob("*.json")) for table in bench_tables(read_record(path))]
    for path in documents:
        text = fill_in(path.read_text(encoding="utf-8"), tables)
        with atomic_path(path) as partial:
            partial.write_text(text, encoding="utf-8")
    return documents


def _figure_cells(figure: Mapping[str, Any]) -> tuple[str, ...]:
    low, high = figure["quartiles"]
    name = method_name(figure["method"])
    floor = "—" if figure["floor_seconds"] is None else _milliseconds(figure["floor_seconds"])
    spread = f"{_milliseconds(low)} to {_milliseconds(high)}"
    return figure["work"], name, str(figure["members"]), figure["variant"], _milliseconds(figure["seconds"]), spread, floor


def _target_cells(target: Mapping[str, Any]) -> tuple[str, ...]:
    return target["work"], target["claim"], f"{target['value']:.3g}", f"{target['at_most']:g}", "yes" if target["met"] else "no"


def _check_cells(check: Mapping[str, Any]) -> tuple[str, ...]:
    return check["work"], check["against"], f"{check['error']:.1e}", f"{check['at_most']:.0e}"


def _milliseconds(seconds: float) -> str:
    """Three digits.

    >>> _milliseconds(0.0001234), _milliseconds(1.5)
    ('0.123', '1,500')
    """
    milliseconds = 1e3 * seconds
    return f"{milliseconds:,.0f}" if milliseconds >= 100 else f"{milliseconds:.3g}"
