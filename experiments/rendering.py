"""Tables made from the records of runs, with the paper's figures beside ours, as Markdown."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from experiments.comparison import (
    COST_HEADER,
    DETECTION_HEADER,
    Row,
    cost_rows,
    detection_rows,
    every_score,
    reported_scores,
)
from experiments.paper import TABLE_1, TABLE_3
from experiments.records import Record, load_records

__all__ = ["Table", "as_markdown", "build_tables", "load_records"]

_DETECTION_NOTE = (
    "Mean ± sample standard deviation over seeds. FPR95: the share of OOD inputs accepted when 95 % of in-distribution "
    "inputs are accepted. In brackets: the size of the OOD set. The paper does not say which class its AUPRC takes as "
    "positive, nor the sizes of its sets; its figures fit OOD as positive on larger sets and stand in that column."
)
_COST_NOTE = "One forward pass of 500 images. The paper's times are from another machine (RTX 3090)."


@dataclass(frozen=True)
class Table:
    """A table as text, ready to be rendered; its first columns hold words, the others numbers."""

    title: str
    header: tuple[str, ...]
    text_columns: int
    rows: list[Row]
    note: str


def build_tables(records: Sequence[Record]) -> Iterator[Table]:
    """Tables 1, 2 and 3 of the paper with ours beside, every other experiment, and every score side by side."""

    def detection(title: str, rows: list[Row]) -> Table:
        return Table(title, DETECTION_HEADER, 4, rows, _DETECTION_NOTE)

    of_table_1 = detection_rows(records, ("table1", "table3"), reported_scores, TABLE_1)
    of_table_3 = detection_rows(records, ("table3", "table1"), reported_scores, TABLE_3)
    yield detection("Table 1: the methods", of_table_1)
    yield Table("Table 2: parameters and run time", COST_HEADER, 2, cost_rows(records), _COST_NOTE)
    yield detection("Table 3: the ensemble size", of_table_3)
    experiments = {record.setting.experiment for record in records}
    for name in sorted(experiments - {"table1", "table2", "table3"}):
        yield detection(f"Experiment: {name}", detection_rows(records, (name,), every_score))
    if "table1" in experiments:
        yield detection("Table 1, every score", detection_rows(records, ("table1",), every_score))


def as_markdown(table: Table) -> str:
    """A table under its title, with its note below.

    >>> print(as_markdown(Table("Sizes", ("Set", "Inputs"), 1, [Row(("mnist", "10,000"))], "Test sets.")))
    ### Sizes
    <BLANKLINE>
    | Set | Inputs |
    | --- | --- |
    | mnist | 10,000 |
    <BLANKLINE>
    Test sets.
    <BLANKLINE>
    """
    lines = [table.header, ("---",) * len(table.header), *(row.cells for row in table.rows)]
    body = "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
    return f"### {table.title}\n\n{body}\n\n{table.note}\n"
