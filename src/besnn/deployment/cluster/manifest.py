"""The output folder's manifest: what was scored by what, and which parts there are."""

import hashlib
import json
import re
from dataclasses import asdict, dataclass, field
from typing import Any

from besnn.deployment.batch import Tally
from besnn.deployment.cluster.locations import Location
from besnn.deployment.cluster.parts import Part, decode_part, part_name
from besnn.errors import DataError, InputError

MANIFEST = "_manifest.json"
"""Readers of parquet folders pass over names that begin with an underscore."""

FORMAT = "besnn-scores"


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
        if known.get("run") != self.run:
            changed = [name for name in self.run if self.run[name] != known.get("run", {}).get(name)]
            raise InputError(
                f"output {self.folder.name} belongs to another run (its {', '.join(changed)} differs): "
                "name another folder, or remove this one"
            )
        checksums = {part["chunk"]: part["sha256"] for part in known.get("parts", [])}
        for chunk in (int(match[1]) for name in names if (match := re.fullmatch(r"part-(\d{8})\.parquet", name))):
            part = decode_part((self.folder / part_name(chunk)).read(), self.identity, chunk)
            if part is not None and checksums.get(chunk, part.sha256) == part.sha256:
                self.parts[chunk] = part
        self.complete = bool(known.get("complete")) and self.parts.keys() == checksums.keys()

    def save(self) -> None:
        """Writes it."""
        ordered = [self.parts[chunk] for chunk in sorted(self.parts)]
        document = {
            "format": FORMAT,
            "version": 1,
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
        if document["format"] != FORMAT:
            raise ValueError(f"its format is {document['format']!r}")
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"{file.name} is no manifest of scores ({error}): remove the folder, or name another") from None
    found: dict[str, Any] = document
    return found
