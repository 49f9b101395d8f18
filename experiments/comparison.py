"""A row of a hunt's table."""

from typing import NamedTuple


class Row(NamedTuple):
    """One row of a table."""

    cells: tuple[str, ...]
