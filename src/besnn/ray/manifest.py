"""The output of a run: one parquet file per chunk, and a manifest by which the same run can continue.

The parts themselves say which chunks are done: each is put in place whole, and bears the identity of its run, its chunk and
checksums. The manifest says which run the folder belongs to and, in the end, that it is complete.
"""

import hashlib
import io
import json
import re
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.parquet

from besnn.batch import SCHEMA, Tally
from besnn.errors import DataError, InputError
from besnn.ray.locations import Location

MANIFEST = "_manifest.json"
"""Readers of parquet folders skip names that begin with an underscore."""

FORMAT, VERSION = "besnn-scores", 1

READERS = 16
"""Parts that are checked at the same time when a run continues: a remote store takes its time for each."""


@dataclass
class Part(Tally):
    """One file of the output: the counts over its rows, the number of the chunk that it holds, and its SHA-256."""

    chunk: int = 0
    sha256: str = ""


def part_name(chunk: int) -> str:
    """Return the name of a part's file; in the order of their names, parts are in the order of the inputs."""
    return f"part-{chunk:08}.parquet"


def encode_part(batches: Iterable[pa.RecordBatch], identity: str, chunk: int) -> tuple[bytes, Part]:
    """Return a part's content, which depends on nothing but the rows, the identity of the run and the chunk."""
    table = pa.Table.from_batches(batches, SCHEMA.with_metadata(_metadata(identity, chunk)))
    file = io.BytesIO()
    pa.parquet.write_table(table, file, row_group_size=max(1, table.num_rows), write_page_checksum=True)
    content = file.getvalue()
    return content, _describe(content, chunk, table)


def decode_part(content: bytes, identity: str, chunk: int) -> Part | None:
    """Return the part with some content; None if that is damaged or belongs to another run or chunk."""
    try:
        table = pa.parquet.read_table(io.BytesIO(content), page_checksum_verification=True)
    except (pa.ArrowException, OSError):
        return None
    own = table.schema.equals(SCHEMA.with_metadata(_metadata(identity, chunk)), check_metadata=True)
    return _describe(content, chunk, table) if own else None


def _describe(content: bytes, chunk: int, table: pa.Table) -> Part:
    part = Part(chunk=chunk, sha256=hashlib.sha256(content).hexdigest())
    for batch in table.to_batches():
        part.add(batch)
    return part


def _metadata(identity: str, chunk: int) -> dict[str, str]:
    return {"besnn.run": identity, "besnn.chunk": str(chunk)}


@dataclass
class Manifest:
    """An output folder, the run that it belongs to, and the parts in place, by chunk.

    A run is everything that the scores depend on (input, model, versions, chunk size): only the same run may continue.
    """

    folder: Location
    run: dict[str, Any]
    parts: dict[int, Part] = field(default_factory=dict)
    complete: bool = False

    @property
    def identity(self) -> str:
        """A digest of `run`."""
        return hashlib.sha256(json.dumps(self.run, sort_keys=True).encode()).hexdigest()

    @classmethod
    def open(cls, folder: Location, run: dict[str, Any]) -> "Manifest":
        """Open a new output folder, or one that the same run has begun; nothing is written."""
        if folder.is_file() or folder.suffix in (".csv", ".jsonl"):
            raise InputError(f"output {folder.name} is a file: on Ray, name a folder for parquet files")
        manifest = cls(folder, run)
        names = folder.names()
        if MANIFEST in names:
            manifest._find_parts(names)
        elif names:
            raise InputError(f"output {folder.name} holds other files ({names[0]}): name a new folder, or empty it")
        return manifest

    def _find_parts(self, names: list[str]) -> None:
        known = _read_manifest(self.folder / MANIFEST)
        if known["run"] != self.run:
            changed = [name for name in self.run if self.run[name] != known["run"].get(name)]
            other = f"belongs to another run (different {', '.join(changed)})"
            raise InputError(f"output {self.folder.name} {other}: name another folder, or remove this one")
        listed = {part["chunk"]: part["sha256"] for part in known["parts"]}
        chunks = [int(match[1]) for name in names if (match := re.fullmatch(r"part-(\d{8})\.parquet", name))]
        with ThreadPoolExecutor(READERS) as pool:
            found = pool.map(lambda chunk: self._find_part(chunk, listed.get(chunk)), chunks)
            self.parts = {part.chunk: part for part in found if part is not None}
        self.complete = known["complete"] and self.parts.keys() == listed.keys()

    def _find_part(self, chunk: int, sha256: str | None) -> Part | None:
        """Return a part in place if it is intact and, where the manifest lists it, has the checksum there."""
        part = decode_part((self.folder / part_name(chunk)).read(), self.identity, chunk)
        return part if part is not None and sha256 in (None, part.sha256) else None

    def covers(self, first: int, stop: int | None) -> bool:
        """Whether the parts of all chunks from `first` to before `stop` (None: an unknown number) are in place."""
        return stop is not None and all(chunk in self.parts for chunk in range(first, stop))

    def save(self) -> None:
        """Write the manifest."""
        document = {
            "format": FORMAT,
            "version": VERSION,
            "complete": self.complete,
            "rows": self.tally().inputs,
            "identity": self.identity,
            "run": self.run,
            "parts": [{"name": part_name(chunk), **asdict(part)} for chunk, part in sorted(self.parts.items())],
        }
        (self.folder / MANIFEST).write(json.dumps(document, indent=1).encode())

    def tally(self) -> Tally:
        """Return the counts over all parts."""
        total = Tally()
        for _, part in sorted(self.parts.items()):
            total.merge(part)
        return total


def _read_manifest(file: Location) -> dict[str, Any]:
    try:
        document: dict[str, Any] = json.loads(file.read())
        if document["format"] != FORMAT or document["version"] != VERSION:
            raise ValueError(f"its format is {document['format']!r}, version {document['version']!r}")
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"{file.name} is not a manifest of scores ({error}): remove the folder, or name another") from None
    return document
