import numpy as np
import pytest

from besnn.data import Dataset
from besnn.errors import InputError, NotReadyError
from besnn.training.fit import fit_detector


@pytest.fixture(scope="module")
def detector(tiny_recipe, moons):
    return fit_detector(tiny_recipe("score.name=combined"), moons).detector


@pytest.fixture(scope="module")
def far(moons):
    return Dataset(moons.inputs + 50, None, (), "far away", {"far": "abc"}, note="made up")


def test_a_set_gets_every_score(detector, moons):
    answers = detector._scored_set(moons, None)
    predictions = detector.predict(moons.inputs)
    assert list(answers.scores) == detector.scoring.names
    assert "combined" in answers.scores
    np.testing.assert_array_equal(answers.scores["combined"], predictions.score)
    np.testing.assert_array_equal(answers.predictions, predictions.indices)
    np.testing.assert_array_equal(answers.is_ood, predictions.is_ood)


def test_an_evaluation_carries_names_figures_and_provenance(detector, moons, far):
    names = [f"point {row}" for row in range(len(far))]
    evaluation = detector.evaluate(moons, {"far": far}, title="Moons", input_names={"far": names}, provenance={"date": "today"})
    assert (evaluation.title, evaluation.known_name, evaluation.default_score) == ("Moons", "two-moons", "combined")
    assert evaluation.unknown["far"].name_of(3) == "point 3"
    assert evaluation.known.name_of(3) == "#3"
    assert evaluation.feature_names == ("x1", "x2")
    assert evaluation.provenance["date"] == "today"
    assert evaluation.provenance["data"] == moons.hashes | far.hashes
    assert evaluation.provenance["data_note"] == "made up"
    assert evaluation.provenance["model"] == detector.provenance
    metrics = evaluation.metrics(resamples=10)
    assert metrics["accuracy"] == np.mean(detector.predict(moons.inputs).indices == moons.labels)


def test_steps_too_early_and_data_without_labels(tiny_recipe, moons, detector, far):
    early = fit_detector(tiny_recipe("data.calibration=0", "training.epochs=1"), moons).detector
    with pytest.raises(NotReadyError, match="not calibrated"):
        early.evaluate(moons, {"far": far})
    with pytest.raises(InputError, match="far away has no labels"):
        detector.evaluate(far, {"far": far})
