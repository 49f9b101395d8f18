"""Records of benchmarks, and Markdown pages whose tables are written by command, never by hand."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from besnn.errors import DataError, InputError
from besnn.storage.files import atomic_path
from besnn.training.record import CPU, provenance, read_record

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "results"
BENCH = "bench"
ALL = "all"
_MARKERS = re.compile(r"<!-- table: (?P<title>.+?) -->\n.*?<!-- end of table -->", re.DOTALL)
_HOW_TO_MARK = f"add the lines <!-- table: {ALL} --> and <!-- end of table -->, or a table's title in place of {ALL}"
_NO_TABLE = "No such runs yet.\n"


def bench_record(
    benchmark: str, fields: dict[str, Any], device: torch.device = CPU, data_hashes: dict[str, str] | None = None
) -> dict[str, Any]:
    """Return the record of a benchmark: its name, what it found, and where and on what data that was measured."""
    return {"experiment": benchmark, **fields, "provenance": provenance(data_hashes or {}, device)}


def bench_records(benchmark: str, results: Path = RESULTS) -> list[dict[str, Any]]:
    """Read all records of one benchmark, in the order of their names: `results/bench/<benchmark>*.json`."""
    return [read_record(path) for path in sorted((results / BENCH).glob(f"{benchmark}*.json"))]


@dataclass(frozen=True)
class Table:
    """A table of text; its title is also the name of its place in a document, its note stands below."""

    title: str
    header: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    note: str

    def markdown(self) -> str:
        """Return the table under its title, with its note below.

        >>> print(Table("Sizes", ("Set", "Inputs"), [("mnist", "10,000")], "Test sets.").markdown())
        ### Sizes
        <BLANKLINE>
        | Set | Inputs |
        | --- | --- |
        | mnist | 10,000 |
        <BLANKLINE>
        Test sets.
        <BLANKLINE>
        """
        lines = [self.header, ["---"] * len(self.header), *self.rows]
        table = "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
        return f"### {self.title}\n\n{table}\n\n{self.note}\n"


def fill_in(text: str, tables: Sequence[Table]) -> str:
    r"""Return a document's text with each table between its markers, in place of the previous one.

    >>> sizes = Table("Sizes", ("Set",), [("mnist",)], "Test sets.")
    >>> print(fill_in("<!-- table: Sizes -->\nold\n<!-- end of table -->", [sizes]).splitlines()[2])
    ### Sizes
    """
    rendered = {table.title: table.markdown() for table in tables}
    rendered[ALL] = "\n".join(rendered.values())

    def filled(match: re.Match[str]) -> str:
        body = rendered.get(match["title"], _NO_TABLE)
        return f"<!-- table: {match['title']} -->\n\n{body}\n<!-- end of table -->"

    if not _MARKERS.search(text):
        raise InputError(f"there is no place for a table: {_HOW_TO_MARK}")
    return _MARKERS.sub(filled, text)


def update_documents(documents: Sequence[Path], tables: Sequence[Table]) -> None:
    """Write tables into Markdown documents; if one of them cannot take tables, none is changed."""
    write_texts({path: filled_document(path, tables) for path in documents})


def write_texts(texts: Mapping[Path, str]) -> None:
    """Write files, each of them whole or not at all."""
    for path, text in texts.items():
        with atomic_path(path) as partial:
            partial.write_text(text, encoding="utf-8")


def filled_document(path: Path, tables: Sequence[Table]) -> str:
    """Return a document's text with each table in its place."""
    try:
        return fill_in(path.read_text(encoding="utf-8"), tables)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"cannot read {path} ({error.__class__.__name__}): give a Markdown file") from None
