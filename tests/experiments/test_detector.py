"""The detector made from kept weights, and the model file in the repository."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from besnn.detector import Detector
from besnn.errors import BesnnError, InputError
from besnn.evaluation import ood_metrics
from besnn.training.record import read_record
from experiments.detection import measure_detection, official_test_set
from experiments.detector import ALPHA, MODELS, Comparison, check, compare, make_detector, record_of
from experiments.runner import execute
from experiments.runs import Run, Workspace
from experiments.suites import table1_runs

ROOT = Path(__file__).parents[2]


@pytest.fixture
def kept(workspace: Workspace, small: dict[str, tuple[str, ...]], small_generator: tuple[str, ...]) -> tuple[Run, Workspace]:
    """A recorded run and where it left its weights."""
    workspace = replace(workspace, keep_weights=True)
    (run,) = table1_runs("fashion-mnist", [0], (*small["fashion-mnist"], *small_generator), methods=["be-snn"])
    execute(run, measure_detection, workspace)
    return run, workspace


def test_a_detector_from_kept_weights_has_the_figures_of_its_record(kept: tuple[Run, Workspace]) -> None:
    run, workspace = kept
    detector = make_detector(run, workspace)
    accuracy, false_alarms, *aurocs = found = list(compare(detector, run, workspace))
    assert detector.threshold is not None
    assert (detector.threshold.alpha, len(detector.threshold.scores)) == (ALPHA, 45)
    assert false_alarms.recorded == ALPHA
    assert accuracy.name == "accuracy"
    assert detector.examples is not None
    assert [each.name for each in aurocs] == [
        "AUROC of tempered-entropy on mnist",
        "AUROC of combined on mnist",
        "AUROC of tempered-entropy on not-mnist",
        "AUROC of combined on not-mnist",
    ]
    same = [accuracy, *aurocs]  # all 90 training images are stored
    assert [each.found for each in same] == pytest.approx([each.recorded for each in same], abs=1e-6)
    check(same)
    assert len(found) == 6


def test_kept_weights_are_a_small_model_file_without_densities(kept: tuple[Run, Workspace]) -> None:
    run, workspace = kept
    detector = Detector.load(workspace.weights(run))
    assert detector.scoring.name == "tempered-entropy"
    assert not detector.scoring.densities
    assert detector.recipe == run.recipe


def test_another_score_needs_no_training(kept: tuple[Run, Workspace]) -> None:
    run, workspace = kept
    first = read_record(workspace.record(run))
    score = run.recipe.score.model_copy(update={"neighbour": 2})  # the density is another one, the network is the same
    other = replace(run, experiment="decisions", recipe=run.recipe.model_copy(update={"score": score}))
    again = execute(other, measure_detection, replace(workspace, keep_weights=False))
    assert again["provenance"]["trained"]["date"] == Detector.load(workspace.weights(run)).provenance["date"]
    assert again["recipe"]["score"]["neighbour"] == 2
    assert again["accuracy"] == first["accuracy"]
    assert again["scores"]["tempered-entropy"] == first["scores"]["tempered-entropy"]
    assert again["scores"].keys() == first["scores"].keys()


def test_other_weights_are_refused(kept: tuple[Run, Workspace]) -> None:
    run, workspace = kept
    detector = make_detector(run, workspace)
    for weight in detector.model.parameters():
        weight.detach().mul_(-1)
    with pytest.raises(BesnnError, match=r"in the record: these are other weights"):
        check(list(compare(detector.to("cpu"), run, workspace)))


def test_figures_agree_up_to_a_tolerance() -> None:
    assert Comparison("accuracy", 0.9229, 0.9233).agrees
    assert not Comparison("accuracy", 0.9229, 0.9260).agrees


def test_missing_files_are_named(kept: tuple[Run, Workspace]) -> None:
    run, workspace = kept
    workspace.weights(run).unlink()
    with pytest.raises(InputError, match=r"there are no weights .*remove the record and run it again with --keep-weights"):
        make_detector(run, workspace)
    workspace.record(run).unlink()
    with pytest.raises(InputError, match=r"there is no record .*python -m experiments table1"):
        make_detector(run, workspace)


@pytest.mark.real_data
@pytest.mark.parametrize(("in_name", "out_name", "images"), [("fashion-mnist", "mnist", 600), ("cifar10", "svhn", 150)])
def test_a_model_file_has_its_recorded_figures_on_a_sample(
    real_data_dir: Path, in_name: str, out_name: str, images: int
) -> None:
    (run, *_) = table1_runs(in_name, [0], [f"data.limit={images}"], methods=["be-snn"])
    workspace = Workspace(ROOT / "results", real_data_dir)
    detector = Detector.load(ROOT / MODELS / f"{in_name}.safetensors")
    known, unknown = (official_test_set(name, run, workspace) for name in (in_name, out_name))
    recorded = {figure["name"]: figure["found"] for figure in read_record(record_of(in_name, workspace.results))["figures"]}
    predictions = detector.predict(known.inputs)
    accuracy = float(np.mean(predictions.indices == known.align_classes(detector.class_names).labels))
    assert accuracy == pytest.approx(recorded["accuracy"], abs=images**-0.5)  # four standard errors or more
    assert float(predictions.is_ood.mean()) == pytest.approx(ALPHA, abs=0.875 * images**-0.5)
    auroc = ood_metrics(predictions.score, detector.score(unknown.inputs))["auroc"]
    assert auroc == pytest.approx(recorded[f"AUROC of combined on {out_name}"], abs=0.5 * images**-0.5)
