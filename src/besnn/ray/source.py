"""What a cluster scores: inputs in chunks of a fixed number of rows.

Chunks are cut where the local engine cuts its batches, so that both score the same rows together. A source travels to the
processes that read it and to those that score it: the first turn a span of chunks into rows of a Ray data set, one row a chunk;
the second turn such a row into batches.
"""

from collections.abc import Iterator
from typing import Any, Protocol, TypeAlias

from besnn.data import Batch

Row: TypeAlias = dict[str, Any]
"""A chunk on its way: its number as `chunk`, and what `Source.batches` makes batches of."""

Span: TypeAlias = tuple[int, int | None]
"""Chunks to be read in one go: the first, and the one after the last (None: to the end)."""


class Source(Protocol):
    """Inputs in chunks."""

    @property
    def chunk_rows(self) -> int:
        """Inputs a chunk; the last one may have fewer."""
        ...

    @property
    def rows(self) -> int | None:
        """Inputs in all, where that is known without reading them."""
        ...

    def fingerprint(self) -> str:
        """What tells whether the inputs changed."""
        ...

    def spans(self) -> list[Span]:
        """How to divide the reading among processes."""
        ...

    def read(self, span: Span) -> Iterator[Row]:
        """The chunks of a span, in order."""
        ...

    def batches(self, row: Row) -> Iterator[Batch]:
        """The inputs of a chunk, in batches as the local engine scores them."""
        ...
