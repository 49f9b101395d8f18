"""Tables from records: reading, averaging over seeds, the paper beside ours."""

import json
import statistics
from pathlib import Path
from typing import Any

import pytest

from besnn.errors import DataError
from besnn.training.record import write_record
from experiments.cost import cost_table
from experiments.paper import NOT_RUN, TABLE_1, TABLE_2, TABLE_3
from experiments.records import Record, load_records
from experiments.tables import cost_rows_table, detection_tables, result_tables

TITLE_1, TITLE_2, TITLE_3 = "Table 1: the methods", "Table 2: parameters and run time", "Table 3: the ensemble size"
FIGURE_1 = "Figure 1: confidence over the plane"
Rows = list[tuple[str, ...]]


def fields(seed: int = 0, auroc: float = 0.9, **changes: Any) -> dict[str, Any]:
    """A record of BE-SNN on FashionMNIST with three scores and two OOD sets."""
    figures = {"auroc": auroc, "aupr_in": 0.8, "aupr_out": 0.7, "fpr95": 0.2, "fpr95_ood": 0.3, "n_in": 100}
    sets = {"mnist": figures | {"n_out": 10_000}, "not-mnist": figures | {"n_out": 9_000}}
    return {
        "experiment": "table1",
        "method": "be-snn",
        "in": "fashion-mnist",
        "members": 4,
        "seed": seed,
        "accuracy": 0.93 + seed / 1000,
        "default_score": "knn-density",
        "scores": {"tempered-entropy": sets, "knn-density": sets, "energy": sets},
        "parameters": 1_100_000,
        "seconds": 60.0,
        "provenance": {"commit": "abc"},
    } | changes


def rows_of(records: list[dict[str, Any]], title: str) -> Rows:
    parsed = [Record.model_validate(record) for record in records]
    tables = [*detection_tables(parsed), cost_rows_table(parsed)]
    return next(list(table.rows) for table in tables if table.title == title)


def test_mean_and_deviation_over_seeds() -> None:
    aurocs = [0.91, 0.94, 0.95]
    records = [fields(seed, auroc) for seed, auroc in enumerate(aurocs)]
    paper, tempered, default = rows_of(records, TITLE_1)[:3]
    assert paper[3:6] == ("paper", "5", "92.4 ± 0.1 %")
    assert tempered[2:5] == ("mnist (10,000)", "ours, tempered-entropy", "3")
    assert default[3] == "ours, knn-density (default)"
    assert tempered[7] == f"{statistics.mean(aurocs):.3f} ± {statistics.stdev(aurocs):.3f}"
    assert tempered[5] == f"{100 * 0.931:.1f} ± {100 * statistics.stdev([0.93, 0.931, 0.932]):.1f} %"
    assert tempered[6] == "0.200 ± 0.000"
    assert tempered[8:] == ("0.700 ± 0.000", "0.800 ± 0.000")


def test_a_single_run_has_no_deviation() -> None:
    assert rows_of([fields()], TITLE_1)[1][5:8] == ("93.0 %", "0.200", "0.900")


@pytest.mark.parametrize(("title", "published"), [(TITLE_1, TABLE_1), (TITLE_2, TABLE_2), (TITLE_3, TABLE_3)])
def test_without_records_every_row_says_not_run(title: str, published: tuple[object, ...]) -> None:
    rows = rows_of([], title)
    assert sum(NOT_RUN in cells for cells in rows) == sum("paper" in cells for cells in rows) == len(published)


def test_baselines_show_the_score_of_their_paper_once() -> None:
    record = fields(method="softmax", members=1, default_score="energy")
    ours = [cells for cells in rows_of([record], TITLE_1) if cells[1] == "Softmax network" and "paper" not in cells[3]]
    assert [cells[3] for cells in ours] == ["ours, energy (default)", "ours, energy (default)", "ours"]  # cifar10: not run


def test_tables_1_and_3_share_the_runs_of_four_members() -> None:
    for experiment, title in [("table1", TITLE_3), ("table3", TITLE_1)]:
        assert any(cells[3] == "ours, tempered-entropy" for cells in rows_of([fields(experiment=experiment)], title))
    both = [fields(experiment="table1", auroc=0.5), fields(experiment="table3", auroc=0.75)]
    shown = [cells for cells in rows_of(both, TITLE_3) if cells[3] == "ours, tempered-entropy"]
    assert {(cells[4], cells[7]) for cells in shown} == {("1", "0.750")}


def test_methods_and_variants_beyond_the_paper_get_rows_beside_their_set() -> None:
    rows = rows_of([fields(method="deep-ensemble", default_score="energy"), fields(variant="batch of N = 2")], TITLE_1)
    methods = [cells[1] for cells in rows]
    assert "Deep ensemble, N = 4" in methods
    assert "BE-SNN, N = 4, batch of N = 2" in methods
    in_names = [cells[0] for cells in rows]
    assert in_names == sorted(in_names, reverse=True)  # fashion-mnist first, none after cifar10
    plain = [cells for cells in rows if cells[1] == "BE-SNN, N = 4" and cells[3] != "paper"]
    assert all(NOT_RUN in cells for cells in plain)  # a variant does not count as the plain method


def test_a_score_that_was_not_recorded_has_no_row() -> None:
    record = fields()
    del record["scores"]["tempered-entropy"]
    sources = {cells[3] for cells in rows_of([record], TITLE_1) if cells[1] == "BE-SNN, N = 4"}
    assert sources == {"paper", "ours, knn-density (default)", "ours"}  # cifar10: not run


def test_further_experiments_show_the_papers_score_and_the_default() -> None:
    records = [fields(experiment="ablations", variant=f"λ2 = {value}") for value in (0.0, 0.5)]
    rows = rows_of(records, "Experiment: ablations")
    assert [row[3] for row in rows[:2]] == ["ours, tempered-entropy", "ours, knn-density (default)"]
    assert len(rows) == 2 * 2 * 2  # variants, OOD sets, scores
    assert rows[0][1] == "BE-SNN, N = 4, λ2 = 0.0"
    assert len(rows_of([fields()], "Table 1, every score")) == 2 * 3


def test_forward_times_by_hardware() -> None:
    records = [
        fields(seed, experiment="table2", variant=hardware, seconds=seconds, scores={})
        for hardware, times in {"H200": [0.001, 0.002], "2 CPU cores": [0.5]}.items()
        for seed, seconds in enumerate(times)
    ]
    rows = rows_of(records, TITLE_2)
    assert rows[0] == ("BE-SNN, N = 4", "paper", "1,136,878", "5.9")
    assert rows[1] == ("BE-SNN, N = 4", "ours, H200", "1,100,000", "1.50 ± 0.71")
    assert rows[2] == ("BE-SNN, N = 4", "ours, 2 CPU cores", "1,100,000", "500.00")
    assert rows[4][1:] == ("ours", NOT_RUN, "")


def test_costs_are_in_seconds_milliseconds_and_gibibytes() -> None:
    record = fields(experiment="cost", variant="a GPU", method="softmax", members=1, seconds=61.4, scores={})
    record |= {"in": "cifar10", "score_seconds": 0.00125, "training_bytes": 3 * 2**29, "score_bytes": None}
    (row,) = cost_table([Record.model_validate(record)]).rows
    assert row == ("cifar10", "Softmax network", "a GPU", "1,100,000", "61", "1.50", "1.25", "—")


def test_tempering_over_members_comes_from_table_3(results: Path) -> None:
    rows = cells_of(results, "Experiment: tempered or plain softmax")
    assert {(row[1], row[3]) for row in rows} == {
        (f"BE-SNN, N = {members}", f"ours, {score}") for members in (1, 4) for score in ("tempered-entropy", "softmax-entropy")
    }
    assert {row[4] for row in rows} == {"2"}


def test_figure_1_in_numbers(results: Path) -> None:
    (table,) = [table for table in result_tables(results) if table.title == FIGURE_1]
    assert table.header == ("Method", "Seeds", "0 to 0.5", "0.5 to 4", "Share above 0.5")
    assert table.rows == [
        ("BE-SNN, N = 4", "1", "0.900", "0.200", "0.250"),
        ("DUQ", "2", "0.900 ± 0.000", f"0.250 ± {statistics.stdev([0.1, 0.4]):.3f}", "0.250 ± 0.000"),
    ]


def test_tables_say_which_data_were_incomplete(results: Path) -> None:
    tables = result_tables(results)
    told = {table.title for table in tables if "not-mnist:test: a file is partial: 8 of 9 records." in table.note}
    concerned = {table.title for table in tables if any(cell.startswith("not-mnist") for row in table.rows for cell in row)}
    assert told == concerned
    assert TITLE_1 in told
    assert not told & {FIGURE_1, TITLE_2}


def test_without_records_there_are_still_the_papers_tables(tmp_path: Path) -> None:
    tables = result_tables(tmp_path)
    assert {table.title for table in tables} == {TITLE_1, TITLE_2, TITLE_3}
    assert not any("Data:" in table.note for table in tables)


def test_records_are_read_from_their_folder_by_setting_and_seed(tmp_path: Path) -> None:
    for seed in (1, 0):
        write_record(tmp_path / "table1" / f"run-{1 - seed}.json", fields(seed))
    write_record(tmp_path / "bench" / "speed.json", {"experiment": "speed"})  # no run
    assert load_records(tmp_path) == [Record.model_validate(fields(seed)) for seed in (0, 1)]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "is not a record"),
        ("[]", "is not a record"),
        (json.dumps({"experiment": "table1"}), "is not a record: in: field required"),
        (json.dumps(fields() | {"seed": "first"}), "is not a record: seed: input should be a valid integer"),
    ],
)
def test_a_broken_record_is_named(text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "table1").mkdir()
    (tmp_path / "table1" / "broken.json").write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match=words) as caught:
        load_records(tmp_path)
    assert "broken.json" in str(caught.value)


def test_a_seed_counted_twice_and_a_missing_folder_are_errors(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_record(tmp_path / "table1" / f"{name}.json", fields(7))
    with pytest.raises(DataError, match="2 records of seed 7"):
        load_records(tmp_path)
    with pytest.raises(DataError, match="is not a folder"):
        load_records(tmp_path / "absent")


def cells_of(results: Path, title: str) -> Rows:
    return next(list(table.rows) for table in result_tables(results) if table.title == title)
