"""Tables from records: loading, averaging over seeds, the paper beside ours, Markdown and HTML."""

import json
import statistics
from pathlib import Path
from typing import Any

import pytest

from besnn.errors import DataError
from experiments.comparison import NOT_RUN
from experiments.paper import TABLE_1, TABLE_2, TABLE_3
from experiments.records import Record, load_records, parse_record
from experiments.rendering import as_markdown, build_tables


def fields(seed: int = 0, auroc: float = 0.9, **changes: Any) -> dict[str, Any]:
    """A record of BE-SNN on FashionMNIST with two scores and two OOD sets."""
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


def rows_of(records: list[Record], title: str) -> list[tuple[str, ...]]:
    return next([row.cells for row in table.rows] for table in build_tables(records) if table.title == title)


TITLE_1, TITLE_2, TITLE_3 = "Table 1: the methods", "Table 2: parameters and run time", "Table 3: the ensemble size"


def test_mean_and_deviation_over_seeds() -> None:
    aurocs = [0.91, 0.94, 0.95]
    records = [parse_record(fields(seed, auroc)) for seed, auroc in enumerate(aurocs)]
    paper, tempered, default = rows_of(records, TITLE_1)[:3]
    assert paper[3:6] == ("paper", "5", "92.4 ± 0.1 %")
    assert tempered[2:5] == ("mnist (10,000)", "ours, tempered-entropy", "3")
    assert default[3] == "ours, knn-density (default)"
    assert tempered[7] == f"{statistics.mean(aurocs):.3f} ± {statistics.stdev(aurocs):.3f}"
    assert tempered[5] == f"{100 * 0.931:.1f} ± {100 * statistics.stdev([0.93, 0.931, 0.932]):.1f} %"
    assert tempered[6] == "0.200 ± 0.000"
    assert tempered[8:] == ("0.700 ± 0.000", "0.800 ± 0.000")


def test_a_single_run_has_no_deviation() -> None:
    assert rows_of([parse_record(fields())], TITLE_1)[1][5:8] == ("93.0 %", "0.200", "0.900")


def test_without_records_every_row_says_not_run() -> None:
    for title, published in [(TITLE_1, TABLE_1), (TITLE_2, TABLE_2), (TITLE_3, TABLE_3)]:
        rows = rows_of([], title)
        assert sum(NOT_RUN in cells for cells in rows) == sum("paper" in cells for cells in rows) == len(published)


def test_baselines_show_the_score_of_their_paper_once() -> None:
    record = parse_record(fields(method="softmax", members=1, default_score="energy"))
    ours = [cells for cells in rows_of([record], TITLE_1) if cells[1] == "Softmax network" and "paper" not in cells[3]]
    assert [cells[3] for cells in ours] == ["ours, energy (default)", "ours, energy (default)", "ours"]  # cifar10: not run


def test_tables_1_and_3_share_the_runs_of_four_members() -> None:
    for experiment, title in [("table1", TITLE_3), ("table3", TITLE_1)]:
        record = parse_record(fields(experiment=experiment))
        assert any(cells[3] == "ours, tempered-entropy" for cells in rows_of([record], title))
    both = [parse_record(fields(experiment="table1", auroc=0.5)), parse_record(fields(experiment="table3", auroc=0.75))]
    shown = [cells for cells in rows_of(both, TITLE_3) if cells[3] == "ours, tempered-entropy"]
    assert {(cells[4], cells[7]) for cells in shown} == {("1", "0.750")}


def test_methods_sets_and_variants_beyond_the_paper_get_rows_beside_their_set() -> None:
    records = [
        parse_record(fields(method="deep-ensemble", default_score="energy")),
        parse_record(fields(variant="batch of N = 2")),
    ]
    rows = rows_of(records, TITLE_1)
    methods = [cells[1] for cells in rows]
    assert "Deep ensemble, N = 4" in methods
    assert "BE-SNN, N = 4, batch of N = 2" in methods
    in_names = [cells[0] for cells in rows]
    assert in_names == sorted(in_names, reverse=True)  # fashion-mnist first, none after cifar10
    plain = [cells for cells in rows if cells[1] == "BE-SNN, N = 4" and cells[3] != "paper"]
    assert all(NOT_RUN in cells for cells in plain)  # a variant does not pass for the plain method


def test_a_score_that_was_not_recorded_has_no_row() -> None:
    record = fields()
    del record["scores"]["tempered-entropy"]
    sources = {cells[3] for cells in rows_of([parse_record(record)], TITLE_1) if cells[1] == "BE-SNN, N = 4"}
    assert sources == {"paper", "ours, knn-density (default)", "ours"}  # cifar10: not run


def test_other_experiments_show_every_score() -> None:
    records = [parse_record(fields(experiment="ablations", variant=f"λ2 = {value}")) for value in (0.0, 0.5)]
    rows = rows_of(records, "Experiment: ablations")
    assert len(rows) == 2 * 2 * 3  # variants, OOD sets, scores
    assert rows[0][1] == "BE-SNN, N = 4, λ2 = 0.0"
    assert len(rows_of([parse_record(fields())], "Table 1, every score")) == 2 * 3


def test_costs_by_hardware() -> None:
    records = [
        parse_record(fields(seed, experiment="table2", variant=hardware, seconds=seconds, scores={}))
        for hardware, times in {"H200": [0.001, 0.002], "2 CPU cores": [0.5]}.items()
        for seed, seconds in enumerate(times)
    ]
    rows = rows_of(records, TITLE_2)
    assert rows[0] == ("BE-SNN, N = 4", "paper", "1,136,878", "5.9")
    assert rows[1] == ("BE-SNN, N = 4", "ours, H200", "1,100,000", "1.50 ± 0.71")
    assert rows[2] == ("BE-SNN, N = 4", "ours, 2 CPU cores", "1,100,000", "500.00")
    assert rows[4][1:] == ("ours", NOT_RUN, "")


def test_markdown_is_a_table_in_every_line() -> None:
    text = "".join(map(as_markdown, build_tables([parse_record(fields(experiment="odd", variant="a | b"))])))
    for block in text.split("### ")[1:]:
        lines = [line for line in block.splitlines() if line.startswith("|")]
        widths = {len(line.replace("\\|", "").split("|")) for line in lines}
        assert len(widths) == 1


def test_records_are_read_from_their_folder(tmp_path: Path) -> None:
    for seed in (1, 0):
        path = tmp_path / "table1" / f"run-{seed}.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(fields(seed)), encoding="utf-8")
    records = load_records(tmp_path)
    assert [record.seed for record in records] == [0, 1]
    assert records[0] == parse_record(fields(0))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "is not a record: Expecting"),
        ("[]", "is not a record"),
        (json.dumps({"experiment": "table1"}), "the field 'in' is missing"),
        (json.dumps(fields() | {"seed": "first"}), "is not a record: invalid literal"),
    ],
)
def test_a_broken_record_is_named(text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "table1").mkdir()
    (tmp_path / "table1" / "broken.json").write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match=words) as caught:
        load_records(tmp_path)
    assert "broken.json" in str(caught.value)


def test_a_seed_counted_twice_and_a_missing_folder_are_errors(tmp_path: Path) -> None:
    (tmp_path / "table1").mkdir()
    for name in ("a", "b"):
        (tmp_path / "table1" / f"{name}.json").write_text(json.dumps(fields(7)), encoding="utf-8")
    with pytest.raises(DataError, match="2 records of seed 7"):
        load_records(tmp_path)
    with pytest.raises(DataError, match="is not a folder"):
        load_records(tmp_path / "absent")
