"""The output's parts: one parquet file a chunk, which says itself whose it is and whether it is whole."""

import hashlib
import io
from collections.abc import Iterable
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet

from besnn.batch import SCHEMA, Tally

_RUN, _CHUNK = "besnn.run", "besnn.chunk"


@dataclass(frozen=True)
class Part:
    """What is known of a part.

    Attributes:
        chunk: the number of the chunk whose scores it holds.
        sha256: of the file.
        rows: inputs.
        flagged: of them, declared out-of-distribution.
        failed: of them, could not be scored.
        first_error: what was wrong with the first of those.
    """

    chunk: int
    sha256: str
    rows: int
    flagged: int
    failed: int
    first_error: str

    @classmethod
    def of(cls, chunk: int, content: bytes, table: pa.Table) -> "Part":
        """The part that a table is stored as."""
        tally = Tally()
        for batch in table.to_batches():
            tally.add(batch)
        sha256 = hashlib.sha256(content).hexdigest()
        return cls(chunk, sha256, tally.inputs, tally.flagged, tally.failed, tally.first_error)


def part_name(chunk: int) -> str:
    """The file's name; in the order of names, parts are in the order of the inputs.

    >>> part_name(7)
    'part-00000007.parquet'
    """
    return f"part-{chunk:08}.parquet"


def encode_part(batches: Iterable[pa.RecordBatch], identity: str, chunk: int) -> tuple[bytes, Part]:
    """The bytes of a part, which are a function of the rows and the run's identity alone."""
    table = pa.Table.from_batches(batches, SCHEMA).replace_schema_metadata({_RUN: identity, _CHUNK: str(chunk)})
    file = io.BytesIO()
    pa.parquet.write_table(table, file, row_group_size=max(1, table.num_rows), write_page_checksum=True)
    content = file.getvalue()
    return content, Part.of(chunk, content, table)


def decode_part(content: bytes, identity: str, chunk: int) -> Part | None:
    """The part that some bytes are, if they are whole, of that run and of that chunk: what its own rows are written as."""
    try:
        table = pa.parquet.read_table(io.BytesIO(content), page_checksum_verification=True)
        rewritten, part = encode_part(table.to_batches(), identity, chunk)
    except (pa.ArrowException, OSError):
        return None
    return part if rewritten == content else None
