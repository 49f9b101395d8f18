"""What a run of a table measures."""

import numpy as np
import pytest
from sklearn.metrics import accuracy_score, roc_auc_score

from besnn.data import keep_classes, load
from besnn.training.choose_score import fit_scoring
from besnn.training.device import make_fabric
from besnn.training.fit import fit_detector
from experiments.detection import fit_every_density, measure_detection
from experiments.runner import execute
from experiments.runs import HELD_OUT, Workspace
from experiments.suites import near_ood_runs, table1_runs

Small = dict[str, tuple[str, ...]]


@pytest.mark.parametrize("method", ["be-snn", "softmax"])
def test_a_record_tells_what_an_evaluation_by_hand_finds(
    method: str, workspace: Workspace, small: Small, small_generator: tuple[str, ...]
) -> None:
    settings = (*small["fashion-mnist"], *(small_generator if method == "be-snn" else ()))
    (run,) = table1_runs("fashion-mnist", [1], settings, methods=[method])
    fields = execute(run, measure_detection, workspace)
    training = load("fashion-mnist", data_dir=workspace.data_dir)
    detector = fit_detector(run.recipe, training, fabric=make_fabric("fp32", "cpu")).detector
    detector.calibrate(training.inputs)
    test, mnist = (load(name, split="test", data_dir=workspace.data_dir) for name in ("fashion-mnist", "mnist"))
    assert fields["accuracy"] == accuracy_score(test.labels, detector.predict(test.inputs).indices)
    own = detector.model.default_score
    is_mnist = np.repeat([0, 1], [len(test), len(mnist)])
    scores = np.concatenate([detector.score(test.inputs, own), detector.score(mnist.inputs, own)])
    assert fields["scores"][own]["mnist"]["auroc"] == pytest.approx(roc_auc_score(is_mnist, scores))
    assert fields["default_score"] == ("combined" if method == "be-snn" else own)


@pytest.mark.parametrize("method", ["be-snn", "softmax"])
def test_layers_apart_are_combined_for_every_method_but_decide_for_one(
    method: str, workspace: Workspace, small: Small, small_generator: tuple[str, ...]
) -> None:
    of_be_snn = (*small_generator, "pretraining.epochs=1") if method == "be-snn" else ()
    settings = (*small["cifar10"], *of_be_snn, "score.layer=trunk.2,trunk")
    run, *_ = table1_runs("cifar10", [1], settings, methods=[method])
    fields = execute(run, measure_detection, workspace)
    fitted = fit_detector(run.recipe, load("cifar10", data_dir=workspace.data_dir), fabric=make_fabric("fp32", "cpu"))
    detector, validation = fitted.detector, fitted.split.validation
    own = detector.model.default_score
    assert fields["default_score"] == ("combined" if method == "be-snn" else own)
    blocks = [f"{kind} at {layer}" for kind in ("nearest-neighbour", "class-gaussian") for layer in ("trunk.2", "trunk")]
    assert {own, *blocks, "combined"} <= fields["scores"].keys()
    assert not {"nearest-neighbour", "class-gaussian"} & fields["scores"].keys()

    fit_scoring(detector, run.recipe.score.model_copy(update={"name": "combined"}), fitted.split.training, validation)
    assert set(detector.scoring.combined.tails) == {own, *blocks[:2]}  # the first kind alone
    assert len(validation) == round(HELD_OUT * 450)
    test, svhn = (load(name, split="test", data_dir=workspace.data_dir) for name in ("cifar10", "svhn"))
    is_svhn = np.repeat([0, 1], [len(test), len(svhn)])
    for name in (own, *blocks[:2], "combined"):
        scores = np.concatenate([detector.score(test.inputs, name), detector.score(svhn.inputs, name)])
        assert fields["scores"][name]["svhn"]["auroc"] == pytest.approx(roc_auc_score(is_svhn, scores), abs=2e-3)


def test_densities_that_are_fitted_later_change_no_decision(workspace: Workspace, small: Small) -> None:
    settings = (*small["cifar10"], "score.layer=trunk.2,trunk")
    (run,) = table1_runs("cifar10", [0], settings, methods=["softmax"])
    fitted = fit_detector(run.recipe, load("cifar10", data_dir=workspace.data_dir), fabric=make_fabric("fp32", "cpu"))
    detector, inputs = fitted.detector, fitted.split.validation.inputs
    before = detector.score(inputs)
    fit_every_density(detector, run.recipe.score, fitted.split.training)
    assert np.array_equal(detector.score(inputs), before)
    assert detector.scoring.combined is None  # without data to combine against
    alone = {name: detector.score(inputs, name) for name in detector.scoring.densities}
    assert len(alone) == 4
    fit_every_density(detector, run.recipe.score, fitted.split.training, fitted.split.validation)
    assert np.array_equal(detector.score(inputs), before)
    of_first_kind = {"nearest-neighbour at trunk.2", "nearest-neighbour at trunk"}
    assert set(detector.scoring.combined.tails) == {detector.model.default_score} | of_first_kind
    for name, scores in alone.items():  # what was fitted stays
        assert np.array_equal(detector.score(inputs, name), scores)


def test_a_limit_makes_a_trial_small_all_through(workspace: Workspace, small: Small) -> None:
    (run,) = table1_runs("fashion-mnist", [0], [*small["fashion-mnist"], "data.limit=40"], methods=["gaussian"])
    figures = execute(run, measure_detection, workspace)["scores"]["class-gaussian"]["not-mnist"]
    assert (figures["n_in"], figures["n_out"]) == (40, 40)


def test_classes_left_out_are_outliers(workspace: Workspace, small: Small) -> None:
    (run,) = near_ood_runs("cifar10", [0], small["cifar10"], methods=["softmax"])
    fields = execute(run, measure_detection, workspace)
    test = load("cifar10", split="test", data_dir=workspace.data_dir)
    known = len(keep_classes(test, run.recipe.data.classes or ()))
    sizes = {name: (each["n_in"], each["n_out"]) for name, each in fields["scores"]["predictive-entropy"].items()}
    assert sizes == {"cifar10:unseen": (known, 90 - known), "svhn": (known, 90), "cifar100-sample": (known, 90)}
