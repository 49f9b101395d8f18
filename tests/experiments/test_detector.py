"""Networks that runs kept, as detectors again."""

from dataclasses import replace
from pathlib import Path

import pytest

from besnn.detector import Detector
from besnn.errors import BesnnError, InputError
from experiments.detection import measure_detection
from experiments.execution import execute
from experiments.runs import Run, Workspace
from experiments.table1 import table1_runs
from experiments.trained import Comparison, check, compare, rebuild

RESULTS = Path(__file__).parents[2] / "results"


@pytest.fixture
def kept(workspace: Workspace, small: dict[str, tuple[str, ...]], small_generator: tuple[str, ...]) -> tuple[Run, Workspace]:
    """A recorded run and where it left its weights."""
    workspace = replace(workspace, keep_weights=True)
    (run,) = table1_runs("fashion-mnist", [0], (*small["fashion-mnist"], *small_generator), methods=["be-snn"])
    execute(run, measure_detection, workspace)
    return run, workspace


def test_a_rebuilt_detector_has_the_figures_of_its_record(kept: tuple[Run, Workspace]) -> None:
    run, workspace = kept
    found = list(compare(rebuild(run, workspace), run, workspace))
    assert [each.name for each in found] == [
        "accuracy",
        "AUROC of tempered-entropy on mnist",
        "AUROC of nearest-neighbour on mnist",
        "AUROC of tempered-entropy on not-mnist",
        "AUROC of nearest-neighbour on not-mnist",
    ]
    assert [each.found for each in found] == pytest.approx([each.recorded for each in found], abs=1e-6)
    check(found)


def test_kept_weights_are_a_small_model_file_without_densities(kept: tuple[Run, Workspace]) -> None:
    run, workspace = kept
    detector = Detector.load(workspace.weights(run))
    assert detector.scoring.name == "tempered-entropy"
    assert not detector.scoring.densities
    assert detector.recipe == run.recipe


def test_other_weights_are_found_out(kept: tuple[Run, Workspace]) -> None:
    run, workspace = kept
    detector = rebuild(run, workspace)
    for weight in detector.model.parameters():
        weight.detach().mul_(-1)
    with pytest.raises(BesnnError, match=r"in the record: the weights are not its own"):
        check(list(compare(detector.to("cpu"), run, workspace)))


def test_a_figure_agrees_but_for_a_few_inputs() -> None:
    assert Comparison("accuracy", 0.9229, 0.9233).agrees
    assert not Comparison("accuracy", 0.9229, 0.9260).agrees


def test_what_is_missing_is_named(kept: tuple[Run, Workspace]) -> None:
    run, workspace = kept
    workspace.weights(run).unlink()
    with pytest.raises(InputError, match=r"there are no weights .*remove the record and run it again with --keep-weights"):
        rebuild(run, workspace)
    workspace.record(run).unlink()
    with pytest.raises(InputError, match=r"there is no record .*python -m experiments table1"):
        rebuild(run, workspace)


def test_the_shipped_network_has_its_recorded_accuracy_on_real_images(real_data_dir: Path) -> None:
    (run,) = table1_runs("fashion-mnist", [0], methods=["be-snn"])
    workspace = Workspace(RESULTS, real_data_dir)
    accuracy = next(compare(Detector.load(workspace.weights(run)), run, workspace))
    assert accuracy.agrees, accuracy
