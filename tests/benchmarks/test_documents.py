"""Documents with marked places for tables."""

from pathlib import Path

import pytest

from benchmarks.documents import Table, fill_in, update_documents
from besnn.errors import DataError, InputError

SIZES = Table("Sizes", ("Set", "Inputs"), [("mnist", "10,000")], "Test sets.")
PATTERN = Table(r"\g<0> \1", ("a",), [("x | y",)], r"\n")


def test_documents_hold_the_tables_and_nothing_else_changes(tmp_path: Path) -> None:
    readme, log = tmp_path / "README.md", tmp_path / "log.md"
    before, between, after = "# Title\n\ntext | not a table\n\n", "\n\nbetween\n\n", "\n\nthe end\n"
    place = "<!-- table: {} -->\nold\n<!-- end of table -->"
    readme.write_text(before + place.format("Sizes") + between + place.format("Experiment: dreams") + after, encoding="utf-8")
    log.write_text(place.format("all"), encoding="utf-8")
    update_documents([readme, log], [SIZES, PATTERN])

    text = readme.read_text(encoding="utf-8")
    assert text.startswith(
        f"{before}<!-- table: Sizes -->\n\n### Sizes\n\n| Set | Inputs |\n| --- | --- |\n| mnist | 10,000 |\n"
    )
    assert text.endswith(f"No such runs yet.\n\n<!-- end of table -->{after}")
    assert between in text
    assert "old" not in text
    assert [line for line in log.read_text(encoding="utf-8").splitlines() if line.startswith("###")] == [
        "### Sizes",
        r"### \g<0> \1",
    ]

    update_documents([readme, log], [SIZES, PATTERN])
    assert readme.read_text(encoding="utf-8") == text


def test_a_document_without_a_place_is_refused_before_any_is_written(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.md", tmp_path / "bad.md"
    good.write_text("<!-- table: all -->\n<!-- end of table -->")
    bad.write_text("<!-- table: all -->\nno end")
    with pytest.raises(InputError, match=r"bad\.md: there is no place for a table: add the lines"):
        update_documents([good, bad], [SIZES])
    assert good.read_text() == "<!-- table: all -->\n<!-- end of table -->"
    with pytest.raises(DataError, match=r"cannot read .*none\.md"):
        update_documents([tmp_path / "none.md"], [SIZES])


def test_pipes_and_patterns_in_a_table_are_text() -> None:
    filled = fill_in("<!-- table: all -->\n<!-- end of table -->", [PATTERN])
    assert r"| x \| y |" in filled
    assert "\n\\n\n" in filled
