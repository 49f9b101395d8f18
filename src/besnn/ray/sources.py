"""Sources whose inputs travel as arrays: tables, `.npz` files and built-in sets."""

import bisect
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import numpy as np
import pyarrow.parquet

from besnn.data import Batch, ImageSpec, stream
from besnn.data.formats import reading
from besnn.data.rows import Rows, numbered_batches
from besnn.data.tables import BLOCK_ROWS, choose_columns, rows_from_cells
from besnn.ray.locations import Location
from besnn.ray.source import Row, Span


@dataclass(frozen=True, kw_only=True)
class ArraySource:
    """What they have in common.

    Attributes:
        chunk_rows: inputs a chunk.
        batch_rows: inputs a batch; it divides that.
    """

    chunk_rows: int
    batch_rows: int

    def batches(self, row: Row) -> Iterator[Batch]:
        """The inputs of a chunk."""
        block = Rows(np.asarray(row["inputs"]), list(row["errors"]))
        return numbered_batches([block], self.batch_rows, start=row["chunk"] * self.chunk_rows)

    @staticmethod
    def _rows(chunks: Iterable[Batch], first: int) -> Iterator[Row]:
        for chunk, batch in enumerate(chunks, first):
            yield {"chunk": chunk, "inputs": batch.inputs, "errors": batch.errors}


@dataclass(frozen=True, kw_only=True)
class StreamSource(ArraySource):
    """What can only be read from its beginning on: a CSV, an `.npz`, a built-in set.

    Attributes:
        location: where it lies, or the name of a built-in set.
        image: the form that images are brought to.
        columns: the columns of a table.
        label: a table's class column.
        data_dir: where built-in sets lie.
    """

    location: Location | str
    image: ImageSpec | None = None
    columns: Sequence[str] | int | None = None
    label: str = "label"
    data_dir: Path | None = None

    @property
    def rows(self) -> None:
        """Not known beforehand."""
        return

    def fingerprint(self) -> str:
        """The file's; the name of a built-in set, whose files have checksums of their own."""
        return self.location if isinstance(self.location, str) else self.location.fingerprint()

    def check(self) -> None:
        """Finds columns that are missing before a cluster is at work; a remote file is not fetched for that."""
        if isinstance(self.location, Location) and (path := self.location.local) is not None:
            self._read(path)  # opens it, and reads nothing more

    def spans(self) -> list[Span]:
        """One."""
        return [(0, None)]

    def read(self, span: Span) -> Iterator[Row]:
        """All chunks."""
        if isinstance(self.location, str):
            yield from self._read(self.location)
        else:
            with self.location.as_local_file() as path:
                yield from self._read(path)

    def _read(self, path: str | Path) -> Iterator[Row]:
        chunks = stream(
            path,
            batch_size=self.chunk_rows,
            image=self.image,
            columns=self.columns,
            label=self.label,
            data_dir=self.data_dir,
        )
        return self._rows(chunks, first=0)


@dataclass(frozen=True, kw_only=True)
class ParquetSource(ArraySource):
    """A parquet file, whose row groups are read independently of each other.

    Attributes:
        location: where it lies.
        columns: the columns to read.
        starts: the first row of each row group, and the number of all rows.
    """

    location: Location
    columns: tuple[str, ...]
    starts: tuple[int, ...]

    @classmethod
    def open(
        cls, location: Location, columns: Sequence[str] | int, label: str, *, chunk_rows: int, batch_rows: int
    ) -> "ParquetSource":
        """Reads the file's footer."""
        with reading(location.name), location.opened() as file, pyarrow.parquet.ParquetFile(file) as table:
            names, footer = table.schema_arrow.names, table.metadata
        sizes = [footer.row_group(group).num_rows for group in range(footer.num_row_groups)]
        return cls(
            chunk_rows=chunk_rows,
            batch_rows=batch_rows,
            location=location,
            columns=tuple(choose_columns(names, columns, label, location.name)),
            starts=tuple(np.cumsum([0, *sizes]).tolist()),
        )

    @property
    def rows(self) -> int:
        """Known from the footer."""
        return self.starts[-1]

    def fingerprint(self) -> str:
        """The file's."""
        return self.location.fingerprint()

    def spans(self) -> list[Span]:
        """Chunks that begin in the same row group are read together, so that hardly any of it is read twice."""
        chunks = range(math.ceil(self.rows / self.chunk_rows))
        together = [list(span) for _, span in groupby(chunks, key=lambda chunk: self._group_of(chunk * self.chunk_rows))]
        return [(span[0], span[-1] + 1) for span in together]

    def read(self, span: Span) -> Iterator[Row]:
        """The chunks of a span."""
        first, stop = span
        assert stop is not None
        blocks = self._blocks(first * self.chunk_rows, min(stop * self.chunk_rows, self.rows))
        return self._rows(numbered_batches(blocks, self.chunk_rows), first)

    def _blocks(self, first: int, stop: int) -> Iterator[Rows]:
        """The rows from `first` to before `stop`."""
        groups = range(self._group_of(first), self._group_of(stop - 1) + 1)
        position = self.starts[groups[0]]
        with (
            reading(self.location.name),
            self.location.opened() as file,
            pyarrow.parquet.ParquetFile(file) as table,
        ):
            for batch in table.iter_batches(BLOCK_ROWS, row_groups=list(groups), columns=list(self.columns)):
                low, high = max(first - position, 0), min(stop - position, batch.num_rows)
                position += batch.num_rows
                if low < high:
                    yield rows_from_cells(batch.slice(low, high - low), self.columns)

    def _group_of(self, row: int) -> int:
        return bisect.bisect_right(self.starts, row) - 1
