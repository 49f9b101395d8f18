"""The recipe hunt: settings judged on held-out data and made-up outliers, and the table of what was tried."""

from typing import Any

import numpy as np
import pytest

from besnn.data import made_up_outliers
from besnn.errors import InputError
from besnn.training.record import read_record
from experiments.__main__ import run as experiments
from experiments.hunt import hunt_runs, hunt_table, hunt_tables, layer_table, others_table, telling_kinds
from experiments.layer_densities import COMBINED_LAYERS, score_name
from experiments.records import Record, load_records


@pytest.mark.parametrize("in_name", ["fashion-mnist", "cifar10"])
def test_every_setting_is_a_recipe_of_its_own(in_name: str) -> None:
    runs = hunt_runs(in_name)
    assert len({run.name for run in runs}) == len({run.recipe.model_dump_json() for run in runs}) == len(runs)
    assert all(run.recipe.data.validation > 0 and run.unknown == () for run in runs)


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
    assert [row[:2] for row in hunt_table("", load_records(tmp_path)).rows] == [("D", "3")]


def hunted(variant: str, made_up: dict[str, dict[str, float]], **changes: Any) -> Record:
    """A record of a hunt."""
    fields = {"experiment": "hunt", "in": "fashion-mnist", "method": "be-snn", "members": 4, "seed": 0, "parameters": 9}
    fields |= {"seconds": 1.0, "variant": variant, "validation_accuracy": 0.925, "made_up": made_up}
    return Record.model_validate(fields | changes)


def test_the_table_puts_the_best_first_and_takes_means_over_kinds() -> None:
    records = [
        hunted(name, {score: {"noise": auroc, "mosaics": auroc - 0.2} for score in ("tempered-entropy", "combined")})
        for name, auroc in (("worse", 0.8), ("better", 0.9))
    ]
    first, second = hunt_table("Recipe hunt", records).rows
    assert first == ("better", "1", "92.50 %", "0.8000", "—", "0.8000", "—")
    assert second[0] == "worse"


def test_every_data_set_has_tables_of_its_own() -> None:
    made_up = {"tempered-entropy": {"noise": 0.9}, "predictive-entropy": {"noise": 0.8}}
    records = [hunted("C", made_up), hunted("E", made_up, **{"in": "cifar10"}), hunted("S", made_up, method="softmax")]
    ours, others, layers = hunt_tables(records, "fashion-mnist", "fashion-convnet")
    assert [(table.title, len(table.rows)) for table in (ours, others, layers)] == [
        ("Recipe hunt", 1),
        ("Recipe hunt, other methods", 1),
        ("Layers on fashion-mnist", 0),
    ]
    assert hunt_tables(records, "cifar10", "cifar-resnet18")[0].title == "Recipe hunt on cifar10"


def test_kinds_count_where_settings_differ_by_more_than_seeds() -> None:
    aurocs = {"a": [(0.90, 0.990), (0.91, 0.999)], "b": [(0.80, 0.991), (0.81, 0.998)]}
    records = [
        hunted(name, {"tempered-entropy": {"strokes": strokes, "noise": noise}}, seed=seed)
        for name, seeds in aurocs.items()
        for seed, (strokes, noise) in enumerate(seeds)
    ]
    assert telling_kinds(records, "tempered-entropy") == ["strokes"]
    assert telling_kinds(records[:2], "tempered-entropy") == ["strokes", "noise"]  # one setting cannot be compared


def test_other_methods_are_shown_by_their_own_scores() -> None:
    made_up = {"predictive-entropy": {"noise": 0.9, "mosaics": 0.7}, "kernel-confidence": {"noise": 0.6, "mosaics": 0.8}}
    records = [hunted(method, made_up, method=method) for method in ("softmax", "duq")]
    more = {score: kinds | {"strokes": 0.1} for score, kinds in made_up.items()}  # a kind that earlier runs did not see
    records.append(hunted("softmax", more, method="softmax", seed=1))
    assert others_table("others", records).rows == [
        ("duq", "1", "92.50 %", "kernel confidence", "0.7000"),
        ("softmax", "2", "92.50 %", "predictive entropy", "0.8000"),
    ]


def test_the_table_of_layers_has_one_row_per_set_of_layers() -> None:
    both = {"tempered-entropy": {"noise": 0.9, "blends": 0.9}, COMBINED_LAYERS: {"noise": 0.75, "blends": 0.85}}
    at_trunk = {score_name("trunk"): {"noise": 0.5, "blends": 0.7}, "combined at trunk": {"noise": 0.6, "blends": 0.8}}
    own = {"combined": {"noise": 0.9, "blends": 1.0}}
    records = [
        hunted("joined", both | at_trunk, recipe={"score": {"layer": "trunk.stage2+trunk"}}),
        hunted("separate", both | own, recipe={"score": {"layer": "trunk.stage2,trunk"}}),
        hunted("without", {"tempered-entropy": both["tempered-entropy"]}, recipe={"score": {"layer": "trunk"}}),
    ]
    assert layer_table("cifar10", "cifar-resnet18", records).rows == [
        ("trunk", "1", "0.6000", "0.7000"),
        ("all of these, apart", "2", "—", "0.8000"),
        ("trunk.stage2, trunk, apart", "1", "—", "0.9500"),
    ]


def test_an_unknown_hunt_is_refused() -> None:
    with pytest.raises(InputError, match="no hunt for 'digits'"):
        hunt_runs("digits")
