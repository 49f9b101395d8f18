"""Table 2: every method timed in one run."""

import statistics

from besnn.evaluation.records import load_records
from besnn.experiments.runs import Workspace
from besnn.experiments.table1 import FURTHER_METHODS, PAPER_METHODS
from besnn.experiments.table2 import time_methods
from besnn.training import build_method
from besnn.training.record import read_record

METHODS = (*PAPER_METHODS, *FURTHER_METHODS)


def test_every_method_gets_its_parameters_and_its_time(workspace: Workspace, small: dict[str, tuple[str, ...]]) -> None:
    runs = time_methods("cifar10", METHODS, workspace, overrides=small["cifar10"], rounds=3)
    for run, method in zip(runs, METHODS, strict=True):
        fields = read_record(workspace.record(run))
        assert fields["method"] == method
        model, _ = build_method(run.recipe, (3, 32, 32), 10)
        assert fields["parameters"] == sum(parameter.numel() for parameter in model.parameters())
        low, middle, high = fields["quartiles"]
        assert 0 < low <= middle == fields["seconds"] <= high
        assert fields["images"] == 500
    records = load_records(workspace.results)
    assert {record.setting.method for record in records} == set(METHODS)
    assert {record.setting.variant for record in records} == {f"{fields['provenance']['hardware']}, cifar10"}
    assert statistics.fmean(record.seconds for record in records) > 0


def test_an_ensemble_of_networks_costs_more_than_one_of_them(workspace: Workspace, small: dict[str, tuple[str, ...]]) -> None:
    settings = (*small["fashion-mnist"], "backbone.widths=[32, 32, 32]", "backbone.head_dim=32", "backbone.last_kernel=3")
    one, four = time_methods("fashion-mnist", ["softmax", "deep-ensemble"], workspace, overrides=settings, rounds=5)
    seconds = [read_record(workspace.record(run))["seconds"] for run in (one, four)]
    assert seconds[1] > 1.5 * seconds[0]
    assert one.variant == read_record(workspace.record(one))["provenance"]["hardware"]
