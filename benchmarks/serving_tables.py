"""Puts the tables of docs/serving.md between their markers, from the records of the benchmarks beside this one."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from besnn.storage.files import atomic_path
from besnn.training.record import read_record
from experiments.comparison import Row
from experiments.documents import fill_in
from experiments.rendering import Table

ROOT = Path(__file__).resolve().parents[1]
DOCUMENT = ROOT / "docs" / "serving.md"
RESULTS = ROOT / "results"


def tables(results: Path = RESULTS) -> Iterator[Table]:
    """The tables that there are records for."""
    if load := sorted(results.glob("serve_load*.json")):
        yield load_table([read_record(path) for path in load])
    for name, make in {"serve_fuzz": fuzz_table, "drift_delay": drift_table}.items():
        if (path := results / f"{name}.json").exists():
            yield make(read_record(path))


def load_table(records: Sequence[dict[str, Any]]) -> Table:
    """The service beside the scorer that it is made of, with one worker process or several."""
    rows = [
        Row(
            (
                str(record.get("workers", 1)),
                figure["request"],
                f"{figure['rows_per_second']:,.0f}",
                f"{figure['in_process_rows_per_second']:,.0f}",
                f"{figure['ratio']:.0%}",
                f"{figure['cpu_ratio']:.0%}",
                f"{figure['p50_ms']:,.0f}",
                f"{figure['p99_ms']:,.0f}",
                f"{figure['answers']:,}",
                str(figure["lost"]),
                str(figure["wrong"]),
            )
        )
        for record in records
        for figure in record["figures"]
    ]
    header = (
        "Workers",
        "A request",
        "Inputs/s",
        "In process",
        "Share",
        "Share, by processor time",
        "p50, ms",
        "p99, ms",
        "Answers",
        "Lost",
        "Wrong",
    )
    record = max(records, key=lambda each: each["load_average"])
    shape = " × ".join(map(str, record["input_shape"]))
    note = (
        f"{record['figures'][0]['clients']} clients on the same {record['cores']} cores as the service; "
        f"{record['method']} of {record['members']} members, inputs of {shape}; median of {record['figures'][0]['rounds']} "
        f"rounds. Every answer was checked against its input. {_company(record)}"
    )
    return Table("Load", header, 2, rows, note)


def _company(record: dict[str, Any]) -> str:
    """How busy the machine was, which a reader of times must know."""
    load, cores = record["load_average"], record["cores"]
    if load <= cores + 1:
        return "Nothing else was at work on the machine."
    return (
        f"Others were at work on the machine (load average {load:.0f} on {cores} cores): rates and times are far from what it "
        "can do, and the shares tell more of the others than of the service. Only what was lost or wrong counts here: for "
        "speed, run it on a quiet machine."
    )


def fuzz_table(record: dict[str, Any]) -> Table:
    """How mutated bodies were answered."""
    statuses = sorted({status for run in record["runs"] for status in run["statuses"]})
    rows = [
        Row(
            (
                run["inputs"],
                f"{run['bodies']:,}",
                *(f"{run['statuses'].get(status, 0):,}" for status in statuses),
                f"{run['slowest_cpu_seconds']:.2f}",
                f"{run['memory_growth_mib']:+.1f}",
            )
        )
        for run in record["runs"]
    ]
    header = ("Model for", "Bodies", *statuses, "Slowest, processor seconds", "Memory, MiB")
    note = "Answers by status. Memory: what the process grew by after the first fifth of the bodies."
    return Table("Mutated bodies", header, 1, rows, note)


def drift_table(record: dict[str, Any]) -> Table:
    """How soon the alarm is raised."""
    rows = []
    for drift, control in zip(record["drift"], record["control"], strict=True):
        delays = drift["delays"]
        spread = f"{delays[0]:,} to {delays[-1]:,}" if delays else "–"
        median = "–" if drift["median_delay"] is None else f"{drift['median_delay']:,.0f}"
        counts = drift["before_the_change"], drift["never"], control["alarms"]
        rows.append(Row((f"{drift['alarm_level']:g}", median, spread, *map(str, counts))))
    header = ("Level", "Median delay, inputs", "Range", "Too early", "Never", "Alarms without drift")
    detector, bound = record["detector"], record["exchangeable"]
    low, high = bound["interval"]
    sentences = [
        f"{record['streams']} streams of {record['in']} of which, after {record['ordinary_inputs']:,} inputs, "
        f"{record['share']:.0%} is {record['out']}, and as many in which nothing changes.",
        f"The detector: {detector['method']} of {detector['members']} members, {detector['epochs']} epochs, score "
        f"{detector['score']} (AUROC {detector['auroc']:.3f} on these two sets), {detector['calibration_inputs']:,} "
        "calibration inputs.",
        f"Of {bound['streams']:,} made-up streams of {bound['length']:,} exchangeable scores, {bound['share']:.1%} ever passed "
        f"{bound['level']:g} (95 % interval {low:.1%} to {high:.1%}); the bound is {1 / bound['level']:.0%}.",
    ]
    return Table("Delay to the drift alarm", header, 1, rows, " ".join(sentences))


def main() -> None:
    text = fill_in(DOCUMENT.read_text(encoding="utf-8"), list(tables()))
    with atomic_path(DOCUMENT) as partial:
        partial.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
