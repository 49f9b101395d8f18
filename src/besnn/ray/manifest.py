"""The output folder's manifest: what was scored by what, and which parts there are."""

import hashlib
import json
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from typing import Any

from besnn.batch import Tally
from besnn.errors import DataError, InputError
from besnn.ray.locations import Location
from besnn.ray.parts import Part, decode_part, part_name

MANIFEST = "_manifest.json"
"""Readers of parquet folders pass over names that begin with an underscore."""

FORMAT, VERSION = "besnn-scores", 1

READERS = 16
"""Parts that are looked at side by side when a run is continued: a remote store takes its time for each."""


@dataclass
class Manifest:
    """An output folder and what is in it.

    Attributes:
        folder: where it lies.
        run: all that decides what the scores are (input, model, versions, chunks): a run continues only as itself.
        parts: those that are in place, by chunk.
        complete: whether they are all.
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
        """A new output folder, or one that the same run has begun, with the parts in it that are whole; nothing is written."""
        if folder.is_file() or folder.suffix in (".csv", ".jsonl"):
            raise InputError(f"output {folder.name} is a file: a cluster writes parquet files into a folder, name one")
        manifest = cls(folder, run)
        names = folder.names()
        if MANIFEST in names:
            manifest._continue(names)
        elif names:
            raise InputError(f"output {folder.name} holds other files ({names[0]}): name a new folder, or empty it")
        return manifest

    def _continue(self, names: list[str]) -> None:
        known = _parse(self.folder / MANIFEST)
        if known["run"] != self.run:
            changed = [name for name in self.run if self.run[name] != known["run"].get(name)]
            raise InputError(
                f"output {self.folder.name} belongs to another run (its {', '.join(changed)} differs): "
                "name another folder, or remove this one"
            )
        listed = {part["chunk"]: Part(**{key: part[key] for key in part if key != "name"}) for part in known["parts"]}
        chunks = [int(match[1]) for name in names if (match := re.fullmatch(r"part-(\d{8})\.parquet", name))]
        with ThreadPoolExecutor(READERS) as pool:
            found = pool.map(lambda chunk: self._check(chunk, listed.get(chunk)), chunks)
            self.parts = {part.chunk: part for part in found if part is not None}
        self.complete = known["complete"] and self.parts.keys() == listed.keys()

    def _check(self, chunk: int, listed: Part | None) -> Part | None:
        """A part that is in place and whole: it has the checksum that is listed or, if none is yet, proves itself."""
        content = (self.folder / part_name(chunk)).read()
        if listed is None:
            return decode_part(content, self.identity, chunk)
        return listed if hashlib.sha256(content).hexdigest() == listed.sha256 else None

    def save(self) -> None:
        """Writes it."""
        ordered = [self.parts[chunk] for chunk in sorted(self.parts)]
        document = {
            "format": FORMAT,
            "version": VERSION,
            "complete": self.complete,
            "rows": sum(part.rows for part in ordered),
            "identity": self.identity,
            "run": self.run,
            "parts": [{"name": part_name(part.chunk), **asdict(part)} for part in ordered],
        }
        (self.folder / MANIFEST).write(json.dumps(document, indent=1).encode())

    def tally(self) -> Tally:
        """How scoring went, over all parts."""
        total = Tally()
        for _, part in sorted(self.parts.items()):
            total.inputs += part.rows
            total.flagged += part.flagged
            total.failed += part.failed
            total.first_error = total.first_error or part.first_error
        return total


def _parse(file: Location) -> dict[str, Any]:
    try:
        document = json.loads(file.read())
        if document["format"] != FORMAT or document["version"] != VERSION:
            raise ValueError(f"its format is {document['format']!r}, version {document['version']!r}")
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"{file.name} is no manifest of scores ({error}): remove the folder, or name another") from None
    found: dict[str, Any] = document
    return found
