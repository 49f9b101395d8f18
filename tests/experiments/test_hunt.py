"""The recipe hunt: settings judged on held-out data and made-up outliers, and the table of what was tried."""

from pathlib import Path

import numpy as np
import pytest

from besnn.data import made_up_outliers
from besnn.errors import InputError
from besnn.training.record import read_record, write_record
from experiments.__main__ import run as experiments
from experiments.hunt import hunt_runs, hunt_table, others_table, telling_kinds


def test_every_setting_is_a_recipe_of_its_own() -> None:
    runs = hunt_runs("fashion-mnist")
    assert len({run.name for run in runs}) == len(runs)
    assert all(run.recipe.data.validation > 0 and run.unknown == () for run in runs)
    assert any(run.recipe.method.norm == "member" for run in runs)


def test_a_run_records_what_held_out_data_and_made_up_outliers_say(small, made_up_data, tmp_path) -> None:
    settings = [*small["fashion-mnist"], "data.validation=0.3", "data.calibration=0.3"]
    options = [part for setting in settings for part in ("--set", setting)]
    where = ["--data-dir", str(made_up_data), "--results", str(tmp_path), "--device", "cpu"]
    assert experiments(["hunt", "--only", "n4-d-seed", *options, *where]) == 0
    fields = [read_record(path) for path in (tmp_path / "hunt").glob("*.json")]
    assert len(fields) == 3
    images = made_up_outliers(np.zeros((4, 1, 28, 28), np.uint8))
    assert all(set(each["made_up"]["tempered-entropy"]) == set(images) for each in fields)
    assert all(0 <= each["validation_accuracy"] <= 1 for each in fields)
    assert all(each["class_features"]["spread"] > 0 for each in fields)
    assert set(fields[0]["members_differ"]["disagreement"]) == {"known", "blends", "drawn-strokes"}
    assert [row.cells[:2] for row in hunt_table(tmp_path).rows] == [("D", "3")]


def test_the_table_puts_the_best_first_and_takes_means_over_kinds(tmp_path: Path) -> None:
    for name, auroc in (("worse", 0.8), ("better", 0.9)):
        scores = {score: {"noise": auroc, "mosaics": auroc - 0.2} for score in ("tempered-entropy", "combined")}
        fields = {"in": "fashion-mnist", "method": "be-snn", "variant": name, "validation_accuracy": 0.925, "made_up": scores}
        write_record(tmp_path / "hunt" / f"{name}.json", fields)
    write_record(tmp_path / "hunt" / "elsewhere.json", fields | {"in": "cifar10"})
    first, second = hunt_table(tmp_path).rows
    assert first.cells == ("better", "1", "92.50 %", "0.8000", "—", "0.8000", "—")
    assert second.cells[0] == "worse"
    assert hunt_table(tmp_path, "cifar10").title == "Recipe hunt on cifar10"
    assert len(hunt_table(tmp_path, "cifar10").rows) == 1


def test_kinds_count_where_settings_differ_by_more_than_seeds() -> None:
    aurocs = {"a": [(0.90, 0.990), (0.91, 0.999)], "b": [(0.80, 0.991), (0.81, 0.998)]}
    records = [
        {"variant": name, "made_up": {"tempered-entropy": {"strokes": strokes, "noise": noise}}}
        for name, seeds in aurocs.items()
        for strokes, noise in seeds
    ]
    assert telling_kinds(records, "tempered-entropy") == ["strokes"]
    assert telling_kinds(records[:2], "tempered-entropy") == ["strokes", "noise"]  # one setting tells nothing


def test_other_methods_have_a_table_of_their_own_by_their_own_scores(tmp_path: Path) -> None:
    made_up = {"predictive-entropy": {"noise": 0.9, "mosaics": 0.7}, "kernel-confidence": {"noise": 0.6, "mosaics": 0.8}}
    made_up["tempered-entropy"] = made_up["predictive-entropy"]
    for method in ("softmax", "duq", "be-snn"):
        fields = {"in": "fashion-mnist", "method": method, "variant": method, "validation_accuracy": 0.9, "made_up": made_up}
        write_record(tmp_path / "hunt" / f"{method}.json", fields)
    assert [row.cells for row in others_table(tmp_path).rows] == [
        ("duq", "90.00 %", "kernel confidence", "0.7000"),
        ("softmax", "90.00 %", "predictive entropy", "0.8000"),
    ]
    assert [row.cells[0] for row in hunt_table(tmp_path).rows] == ["be-snn"]


def test_an_unknown_hunt_is_refused() -> None:
    with pytest.raises(InputError, match="no hunt for 'digits'"):
        hunt_runs("digits")
