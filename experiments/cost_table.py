"""The costs of the methods, side by side."""

from pathlib import Path
from typing import Any

from besnn.evaluation.result import method_name
from besnn.training.record import read_record
from experiments.comparison import Row
from experiments.cost import COST
from experiments.rendering import Table


def cost_table(results: Path) -> Table:
    """The records of `measure_cost` as a table."""
    rows = []
    for fields in sorted(map(read_record, (results / COST).glob("*.json")), key=_order):
        name = method_name(fields["method"]) + (f", N = {fields['members']}" if fields["members"] > 1 else "")
        figures = (
            f"{fields['parameters']:,}",
            f"{fields['seconds']:.0f}",
            _gibibytes(fields["training_bytes"]),
            f"{1e3 * fields['score_seconds']:.2f}",
            _gibibytes(fields["score_bytes"]),
        )
        rows.append(Row((fields["in"], name, fields["variant"], *figures)))
    header = (
        "Trained on",
        "Method",
        "Hardware",
        "Parameters",
        "Training, s",
        "its memory, GiB",
        "500 images, ms",
        "its memory, GiB",
    )
    note = (
        "All methods of one kind of hardware are measured in one run. Training: the first steps, compiling included, and all "
        "others at the pace of some dozens. Memory: the most that the process held on the device, data included."
    )
    return Table("Cost of the methods", header, 3, rows, note)


def _order(fields: dict[str, Any]) -> tuple[str, str, str]:
    return fields["in"], fields["variant"], fields["method"]


def _gibibytes(size: int | None) -> str:
    return "—" if size is None else f"{size / 2**30:.2f}"
