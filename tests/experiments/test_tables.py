"""From records to documents."""

import statistics
from pathlib import Path
from typing import Any

import pytest

from besnn.errors import DataError, InputError
from besnn.evaluation.tables import Table
from besnn.experiments.documents import fill_in, update_documents
from besnn.experiments.tables import result_tables
from besnn.training.record import write_record

TEMPERING = "Experiment: tempered or plain softmax"
FIGURE_1 = "Figure 1: confidence over the plane"


def detection_fields(experiment: str, seed: int, **changes: Any) -> dict[str, Any]:
    figures = {
        "auroc": 0.9 + seed / 100,
        "aupr_in": 0.8,
        "aupr_out": 0.7,
        "fpr95": 0.2,
        "fpr95_ood": 0.3,
        "n_in": 9,
        "n_out": 8,
    }
    names = ("tempered-entropy", "softmax-entropy", "smallest-distance", "nearest-neighbour")
    return {
        "experiment": experiment,
        "variant": "",
        "method": "be-snn",
        "in": "fashion-mnist",
        "out": ["mnist"],
        "members": 4,
        "seed": seed,
        "accuracy": 0.92,
        "default_score": "nearest-neighbour",
        "scores": {name: {"mnist": figures} for name in names},
        "parameters": 838_124,
        "seconds": 60.0,
        "recipe": {},
        "provenance": {"data_note": "not-mnist:test: a file is partial: 8 of 9 records"},
    } | changes


def plane_fields(method: str, members: int, seed: int, confidence: float) -> dict[str, Any]:
    rings = [{"inner": 0.0, "outer": 0.5, "mean_confidence": 0.9, "n": 5}]
    rings.append({"inner": 0.5, "outer": 4.0, "mean_confidence": confidence, "n": 7})
    subject = {"experiment": "figure1", "in": "two-moons", "method": method, "members": members, "seed": seed}
    return subject | {"rings": rings, "share_confident": 0.25, "accuracy": 1.0, "parameters": 9, "seconds": 1.0}


@pytest.fixture
def results(tmp_path: Path) -> Path:
    root = tmp_path / "results"
    for seed in range(2):
        write_record(root / "table3" / f"n4-{seed}.json", detection_fields("table3", seed))
        write_record(root / "table3" / f"n1-{seed}.json", detection_fields("table3", seed, members=1))
        changed = detection_fields("ablations", seed, variant="no entropy term")
        write_record(root / "ablations" / f"{seed}.json", changed)
        write_record(root / "figure1" / f"duq-{seed}.json", plane_fields("duq", 1, seed, [0.1, 0.4][seed]))
    write_record(root / "figure1" / "be-snn.json", plane_fields("be-snn", 4, 0, 0.2))
    timing = {"experiment": "table2", "in": "fashion-mnist", "method": "softmax", "members": 1, "seed": 0, "variant": "a CPU"}
    write_record(root / "table2" / "softmax.json", timing | {"parameters": 1_152_778, "seconds": 0.25})
    return root


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
    notes = {table.title: table.note for table in result_tables(results)}
    assert all(
        ("not-mnist:test: a file is partial: 8 of 9 records." in note) == (title != FIGURE_1 and "Table 2" not in title)
        for title, note in notes.items()
    )


def test_without_records_there_are_still_the_papers_tables(tmp_path: Path) -> None:
    tables = result_tables(tmp_path)
    assert [table.title for table in tables if table.rows] == [
        "Table 1: the methods",
        "Table 2: parameters and run time",
        "Table 3: the ensemble size",
    ]
    assert "Data:" not in tables[0].note


def test_documents_hold_the_tables_and_nothing_else_changes(results: Path, tmp_path: Path) -> None:
    readme, log, page = tmp_path / "README.md", tmp_path / "log.md", tmp_path / "tables.html"
    before, between, after = "# Title\n\ntext | not a table\n\n", "\n\nbetween\n\n", "\n\nthe end\n"
    place = "<!-- table: {} -->\nold\n<!-- end of table -->"
    readme.write_text(before + place.format(FIGURE_1) + between + place.format("Experiment: dreams") + after, encoding="utf-8")
    log.write_text(place.format("all"), encoding="utf-8")
    assert update_documents(results, [readme, log], page) == [readme, log, page]

    text = readme.read_text(encoding="utf-8")
    assert text.startswith(f"{before}<!-- table: {FIGURE_1} -->\n\n### {FIGURE_1}\n\n| Method | Seeds |")
    assert text.endswith(f"No such runs yet.\n\n<!-- end of table -->{after}")
    assert between in text
    assert "old" not in text
    titles = [table.title for table in result_tables(results)]
    assert [
        line.removeprefix("### ") for line in log.read_text(encoding="utf-8").splitlines() if line.startswith("###")
    ] == titles
    assert all(title in page.read_text(encoding="utf-8") for title in titles)

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
