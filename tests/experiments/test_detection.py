"""What a run of a table measures."""

import numpy as np
import pytest
from sklearn.metrics import accuracy_score, roc_auc_score

from besnn.data import keep_classes, load
from besnn.experiments.detection import measure_detection
from besnn.experiments.execution import execute
from besnn.experiments.near_ood import near_ood_runs
from besnn.experiments.runs import Workspace
from besnn.experiments.table1 import table1_runs
from besnn.fitting import fit_detector
from besnn.training.fabric import make_fabric

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
    assert fields["default_score"] == ("nearest-neighbour" if method == "be-snn" else own)


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
    assert sizes == {"cifar10:unseen": (known, 90 - known), "svhn": (known, 90)}
