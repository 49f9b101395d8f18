"""Documents with marked places for tables."""

from pathlib import Path

import pytest

from besnn.errors import DataError, InputError
from experiments.documents import fill_in, update_documents
from experiments.rendering import Table
from experiments.tables import result_tables

FIGURE_1 = "Figure 1: confidence over the plane"


def test_documents_hold_the_tables_and_nothing_else_changes(results: Path, tmp_path: Path) -> None:
    readme, log = tmp_path / "README.md", tmp_path / "log.md"
    before, between, after = "# Title\n\ntext | not a table\n\n", "\n\nbetween\n\n", "\n\nthe end\n"
    place = "<!-- table: {} -->\nold\n<!-- end of table -->"
    readme.write_text(before + place.format(FIGURE_1) + between + place.format("Experiment: dreams") + after, encoding="utf-8")
    log.write_text(place.format("all"), encoding="utf-8")
    assert update_documents(results, [readme, log]) == [readme, log]

    text = readme.read_text(encoding="utf-8")
    assert text.startswith(f"{before}<!-- table: {FIGURE_1} -->\n\n### {FIGURE_1}\n\n| Method | Seeds |")
    assert text.endswith(f"No such runs yet.\n\n<!-- end of table -->{after}")
    assert between in text
    assert "old" not in text
    titles = [table.title for table in result_tables(results)]
    assert [
        line.removeprefix("### ") for line in log.read_text(encoding="utf-8").splitlines() if line.startswith("###")
    ] == titles

    update_documents(results, [readme, log])
    assert readme.read_text(encoding="utf-8") == text


def test_a_document_without_a_place_is_refused_before_any_is_written(results: Path, tmp_path: Path) -> None:
    good, bad = tmp_path / "good.md", tmp_path / "bad.md"
    good.write_text("<!-- table: all -->\n<!-- end of table -->")
    bad.write_text("<!-- table: all -->\nno end")
    with pytest.raises(InputError, match=r"bad\.md: there is no place for a table: add the lines"):
        update_documents(results, [good, bad])
    assert good.read_text() == "<!-- table: all -->\n<!-- end of table -->"
    with pytest.raises(DataError, match=r"none\.md cannot be read"):
        update_documents(results, [tmp_path / "none.md"])


def test_what_looks_like_a_pattern_in_a_table_is_text() -> None:
    table = Table(r"\g<0> \1", ("a",), 1, [], r"\n")
    assert r"### \g<0> \1" in fill_in("<!-- table: all -->\n<!-- end of table -->", [table])
