"""Decisions by method, and triage: a quick run of each measure, and their tables."""

from pathlib import Path

import numpy as np
import pytest

from besnn.data import Dataset
from besnn.triage import Group, Triage
from experiments.__main__ import run as experiments
from experiments.decisions import METHODS, decision_runs, decision_table
from experiments.records import load_records
from experiments.triage import name_groups, triage_table
from tests.experiments.test_main import options


def test_runs_differ_from_those_of_table_1_so_that_no_record_is_shared():
    runs = decision_runs("fashion-mnist", [0])
    assert [run.recipe.method.name for run in runs] == list(METHODS)
    assert {run.recipe.calibration.label_alpha for run in runs} == {0.05}


def test_a_quick_run_makes_a_row(small, made_up_data: Path, tmp_path: Path) -> None:
    *settings, _, _ = options(small["fashion-mnist"], tmp_path, made_up_data)
    assert experiments(["decisions", "--seeds", "1", "--only", "softmax", *settings]) == 0
    (row,) = decision_table(load_records(tmp_path)).rows
    assert row[:3] == ("fashion-mnist", "softmax", "1")
    assert "(mnist), " in row[6]


def test_groups_are_named_as_a_person_would() -> None:
    labels = np.array([0, 0, 0, 1, 1, 1])
    inbox = Dataset(np.zeros((6, 2), np.float32), labels, ("Bag", "Coat"), "inbox")
    found = Triage({"group-1": Group(np.array([0, 1, 2, 3]), "Coat"), "group-2": Group(np.array([4, 5]), "Coat")}, np.zeros(0))
    named, described = name_groups(found, inbox)
    assert [group.name for group in named.groups.values()] == ["Bag", "false alarm"]
    assert [each["purity"] for each in described] == [0.75, 1.0]


def test_the_record_makes_a_table(tmp_path: Path) -> None:
    assert triage_table(tmp_path).rows == []
    table = triage_table(Path("results"))
    if not table.rows:
        pytest.skip("there is no record")
    assert [row[0] for row in table.rows] == ["trained on eight classes", "continued with the named groups"]
