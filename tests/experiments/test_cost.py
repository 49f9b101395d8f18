"""Table 2: every method timed in one run."""

from besnn.training import build_method
from besnn.training.record import read_record
from experiments.cost import time_methods
from experiments.records import load_records
from experiments.runs import Workspace
from experiments.suites import FURTHER_METHODS, PAPER_METHODS

BASELINES = (*PAPER_METHODS[1:], *FURTHER_METHODS)
Small = dict[str, tuple[str, ...]]


def test_every_method_gets_its_parameters_and_its_time(workspace: Workspace, small: Small) -> None:
    runs = time_methods("cifar10", BASELINES, workspace, overrides=small["cifar10"], rounds=3)
    for run, method in zip(runs, BASELINES, strict=True):
        fields = read_record(workspace.record(run))
        assert fields["method"] == method
        model, _ = build_method(run.recipe, (3, 32, 32), 10)
        assert fields["parameters"] == sum(parameter.numel() for parameter in model.parameters())
        low, high = fields["quartiles"]
        assert 0 < low <= fields["seconds"] <= high
        assert fields["rounds"] == 3
        assert fields["images"] == 500
    settings = [record.setting for record in load_records(workspace.results)]
    assert {setting.method for setting in settings} == set(BASELINES)
    assert {setting.variant for setting in settings} == {f"{fields['provenance']['hardware']}, cifar10"}


def test_the_papers_own_table_needs_no_name_of_its_data(
    workspace: Workspace, small: Small, small_generator: tuple[str, ...]
) -> None:
    overrides = (*small["fashion-mnist"], *small_generator)
    (run,) = time_methods("fashion-mnist", ["be-snn"], workspace, overrides=overrides, rounds=2)
    assert run.variant == read_record(workspace.record(run))["provenance"]["hardware"]
