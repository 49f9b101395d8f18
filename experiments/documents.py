"""Documents whose tables are made by command, never by hand."""

import re
from collections.abc import Sequence
from pathlib import Path

from besnn.errors import DataError, InputError
from besnn.storage.files import atomic_path
from experiments.rendering import Table, as_markdown
from experiments.tables import result_tables

ALL = "all"
_MARKERS = re.compile(r"<!-- table: (?P<title>.+?) -->\n.*?<!-- end of table -->", re.DOTALL)
_HOW_TO_MARK = f"add the lines <!-- table: {ALL} --> and <!-- end of table -->, or a table's title in place of {ALL}"
_NO_TABLE = "No such runs yet.\n"


def fill_in(text: str, tables: Sequence[Table]) -> str:
    r"""A document's text with its tables put between their markers, in place of what stood there.

    >>> from experiments.comparison import Row
    >>> sizes = Table("Sizes", ("Set",), 1, [Row(("mnist",))], "Test sets.")
    >>> print(fill_in("<!-- table: Sizes -->\nold\n<!-- end of table -->", [sizes]).splitlines()[2])
    ### Sizes
    """
    rendered = {table.title: as_markdown(table) for table in tables}
    rendered[ALL] = "\n".join(rendered.values())

    def filled(match: re.Match[str]) -> str:
        body = rendered.get(match["title"], _NO_TABLE)
        return f"<!-- table: {match['title']} -->\n\n{body}\n<!-- end of table -->"

    if not _MARKERS.search(text):
        raise InputError(f"there is no place for a table: {_HOW_TO_MARK}")
    return _MARKERS.sub(filled, text)


def update_documents(results: Path, documents: Sequence[Path]) -> list[Path]:
    """Writes the tables into Markdown documents; returns what was written."""
    tables = result_tables(results)
    texts = {path: _filled_document(path, tables) for path in documents}
    for path, text in texts.items():
        with atomic_path(path) as partial:
            partial.write_text(text, encoding="utf-8")
    return list(texts)


def _filled_document(path: Path, tables: Sequence[Table]) -> str:
    try:
        return fill_in(path.read_text(encoding="utf-8"), tables)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read ({error.__class__.__name__}): give a Markdown file") from None
