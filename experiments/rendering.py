"""A hunt's table."""

from dataclasses import dataclass

from experiments.comparison import Row


@dataclass(frozen=True)
class Table:
    """A table as text."""

    title: str
    header: tuple[str, ...]
    text_columns: int
    rows: list[Row]
    note: str
