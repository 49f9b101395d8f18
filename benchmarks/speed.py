"""One run of the benchmarks, and its record."""

from collections.abc import Callable, Iterable

from benchmarks.exported import score_exported
from benchmarks.layouts import compare_layouts
from benchmarks.memory import compare_files, peak_of_scoring
from benchmarks.neighbours import find_neighbours
from benchmarks.results import Findings
from benchmarks.scoring import MEMBERS, besnn_model, score_by_members, score_by_samples, score_many, score_one
from benchmarks.setting import Setting
from benchmarks.training import train_by_samples, train_compiled, train_steps
from besnn.errors import InputError
from besnn.training.record import hardware, provenance

BENCH = "bench"
ROWS: dict[str, Callable[[Setting], Findings]] = {
    "scoring": score_many,
    "one-image": score_one,
    "scoring-samples": score_by_samples,
    "scoring-members": score_by_members,
    "layouts": compare_layouts,
    "export": score_exported,
    "training": train_steps,
    "training-compiled": train_compiled,
    "training-samples": train_by_samples,
    "neighbours": find_neighbours,
    "memory": peak_of_scoring,
    "files": compare_files,
}
"""The rows of the benchmark, by the names that choose them."""


def run_rows(setting: Setting, names: Iterable[str] = (), say: Callable[[str], None] = lambda text: None) -> Findings:
    """Runs some rows, or all of them, one after the other."""
    names = list(names) or list(ROWS)
    for name in names:
        if name not in ROWS:
            raise InputError(f"no row is called {name!r}: use some of {', '.join(ROWS)}")
    findings = Findings()
    for name in names:
        say(f"{name} ...")
        findings.add([ROWS[name](setting)])
    return findings


def bench_record(findings: Findings, setting: Setting) -> dict[str, object]:
    """The record of a run, under the names that all records use; `seconds` is of the figure that the others are about."""
    model = besnn_model(setting)
    seconds = next((figure.timing.seconds for figure in findings.figures if figure.method == "be-snn"), 0.0)
    return {
        "experiment": BENCH,
        "variant": hardware(setting.device),
        "method": "be-snn",
        "in": "fashion-mnist",
        "members": MEMBERS,
        "seed": 0,
        "images": setting.images,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "seconds": seconds,
        "rates": setting.rates.fields(),
        "figures": [figure.fields() for figure in findings.figures],
        "targets": [target.fields() for target in findings.targets],
        "checks": [check.fields() for check in findings.checks],
        "left_out": findings.left_out,
        "provenance": provenance({}, setting.device),
    }
