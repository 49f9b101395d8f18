"""The speed benchmark: rows that are timed beside what one would otherwise run, their record and its tables."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from typing import Any

from benchmarks.deciding import decide_many, decide_one, score_folder
from benchmarks.documents import Table, bench_record
from benchmarks.findings import Findings, Setting
from benchmarks.growth import neighbours_by_rows, score_by_classes, score_by_pixels
from benchmarks.large import train_and_score_large
from benchmarks.memory import compare_files, peak_of_scoring
from benchmarks.neighbours import find_neighbours
from benchmarks.onnx_runtime import score_exported
from benchmarks.scoring import MEMBERS, besnn_model, score_by_members, score_by_samples, score_many, score_one
from benchmarks.table_speed import fit_and_score_tables
from benchmarks.training import train_by_samples, train_steps
from besnn.errors import InputError
from besnn.evaluation.result import method_name
from besnn.training.record import hardware

ROWS: dict[str, Callable[[Setting], Findings]] = {
    "decision": decide_many,
    "one-decision": decide_one,
    "folder": score_folder,
    "scoring": score_many,
    "one-image": score_one,
    "scoring-samples": score_by_samples,
    "scoring-members": score_by_members,
    "scoring-classes": score_by_classes,
    "scoring-pixels": score_by_pixels,
    "export": score_exported,
    "training": train_steps,
    "training-samples": train_by_samples,
    "large": train_and_score_large,
    "neighbours": find_neighbours,
    "neighbours-rows": neighbours_by_rows,
    "tables": fit_and_score_tables,
    "memory": peak_of_scoring,
    "files": compare_files,
}
"""The rows of the benchmark, by name."""


def run_rows(setting: Setting, names: Iterable[str] = (), say: Callable[[str], None] = lambda text: None) -> Findings:
    """Run the named rows, or all of them, one after the other."""
    names = list(names) or list(ROWS)
    for name in names:
        if name not in ROWS:
            raise InputError(f"unknown row {name!r}: use some of {', '.join(ROWS)}")
    findings = Findings()
    for name in names:
        say(f"{name} ...")
        findings.add(ROWS[name](setting))
    return findings


def speed_record(findings: Findings, setting: Setting) -> dict[str, Any]:
    """Return the record of a run; `seconds` is the time of BE-SNN in the first row."""
    model = besnn_model(setting)
    fields = {
        "variant": hardware(setting.device),
        "method": "be-snn",
        "in": "fashion-mnist",
        "members": MEMBERS,
        "seed": 0,
        "images": setting.images,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "seconds": next((figure.timing.seconds for figure in findings.figures if figure.method == "be-snn"), 0.0),
        "rates": asdict(setting.rates),
        "figures": [figure.fields() for figure in findings.figures],
        "targets": [asdict(target) | {"met": target.met} for target in findings.targets],
        "checks": [asdict(check) | {"passed": check.passed} for check in findings.checks],
        "left_out": findings.left_out,
    }
    return bench_record("speed", fields, setting.device)


def speed_tables(record: Mapping[str, Any]) -> list[Table]:
    """Return the tables of one run: times, targets and checks."""
    where, rates = record["provenance"]["hardware"], record["rates"]
    note = (
        "Median and quartiles over rounds, in which all take turns. Floor: operations over the "
        f"{rates['flops'] / 1e12:.3g} TFLOP/s that a matrix product or convolution in {rates['type']} reached here, or bytes "
        f"over the {rates['bytes'] / 1e9:.3g} GB/s of a copy, whichever takes longer."
    )
    times = ("Work", "Method", "N", "How", "Milliseconds", "Quartiles", "Floor")
    targets = ("Work", "Target", "Measured", "At most", "Met")
    target_note = "Ratios and milliseconds of the medians above; bytes of files."
    checks = ("Work", "Compared with", "Error", "At most")
    return [
        Table(f"Time on {where}", times, [_figure_cells(figure) for figure in record["figures"]], note),
        Table(f"Targets on {where}", targets, [_target_cells(target) for target in record["targets"]], target_note),
        Table(f"Checks on {where}", checks, [_check_cells(check) for check in record["checks"]], "Largest errors."),
    ]


def as_text(record: Mapping[str, Any]) -> str:
    """Return a record as one page of tables."""
    tables = [table.markdown() for table in speed_tables(record)]
    return "\n".join([*tables, *(f"left out: {reason}" for reason in record["left_out"])])


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
    """Format seconds as milliseconds, with three digits.

    >>> _milliseconds(0.0001234), _milliseconds(1.5)
    ('0.123', '1,500')
    """
    milliseconds = 1e3 * seconds
    return f"{milliseconds:,.0f}" if milliseconds >= 100 else f"{milliseconds:.3g}"
