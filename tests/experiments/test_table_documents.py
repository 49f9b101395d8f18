"""The tables that records make."""

import statistics
from pathlib import Path

from experiments.rendering import Table
from experiments.tables import result_tables

TEMPERING = "Experiment: tempered or plain softmax"
FIGURE_1 = "Figure 1: confidence over the plane"


def cells(tables: list[Table], title: str) -> list[tuple[str, ...]]:
    (table,) = [table for table in tables if table.title == title]
    return [row.cells for row in table.rows]


def test_tempering_over_members_comes_from_table_3(results: Path) -> None:
    rows = cells(result_tables(results), TEMPERING)
    assert {(row[1], row[3]) for row in rows} == {
        (f"BE-SNN, N = {members}", f"ours, {score}") for members in (1, 4) for score in ("tempered-entropy", "softmax-entropy")
    }
    assert {row[4] for row in rows} == {"2"}


def test_further_experiments_show_the_papers_score_and_the_default(results: Path) -> None:
    rows = cells(result_tables(results), "Experiment: ablations")
    assert [row[3] for row in rows] == ["ours, tempered-entropy", "ours, nearest-neighbour (default)"]
    assert rows[0][1] == "BE-SNN, N = 4, no entropy term"
    assert rows[0][7] == f"0.905 ± {statistics.stdev([0.9, 0.91]):.3f}"


def test_figure_1_in_numbers(results: Path) -> None:
    tables = result_tables(results)
    (table,) = [table for table in tables if table.title == FIGURE_1]
    assert table.header == ("Method", "Seeds", "0 to 0.5", "0.5 to 4", "Share above 0.5")
    assert cells(tables, FIGURE_1) == [
        ("BE-SNN, N = 4", "1", "0.900", "0.200", "0.250"),
        ("DUQ", "2", "0.900 ± 0.000", f"0.250 ± {statistics.stdev([0.1, 0.4]):.3f}", "0.250 ± 0.000"),
    ]


def test_tables_say_what_was_amiss_with_the_data(results: Path) -> None:
    told = {
        table.title for table in result_tables(results) if "not-mnist:test: a file is partial: 8 of 9 records." in table.note
    }
    concerned = {
        table.title
        for table in result_tables(results)
        if any(cell.startswith("not-mnist") for row in table.rows for cell in row.cells)
    }
    assert told == concerned
    assert "Table 1: the methods" in told
    assert not told & {FIGURE_1, "Recipe hunt", "Table 2: parameters and run time"}


def test_without_records_there_are_still_the_papers_tables(tmp_path: Path) -> None:
    tables = result_tables(tmp_path)
    assert [table.title for table in tables if table.rows] == [
        "Table 1: the methods",
        "Table 2: parameters and run time",
        "Table 3: the ensemble size",
    ]
    assert "Data:" not in tables[0].note
