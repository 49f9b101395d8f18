import dataclasses

import numpy as np
import pytest
import torch
from scipy.stats import betabinom

from besnn.data import Dataset, digits, keep_classes, load_or_stream, made_up_outliers, two_moons
from besnn.detection.densities import density_kind
from besnn.detector import Detector
from besnn.errors import InputError
from besnn.recipe import METHODS
from besnn.storage.tensor_file import MODEL_FILE, read_tensor_file, write_tensor_file
from besnn.training import fit as module
from besnn.training import load_recipe
from besnn.training.checkpoint import CHECKPOINT, checkpoint_in
from besnn.training.fit import fit_detector
from besnn.training.progress import Reporter


def false_alarm_interval(detector, new, confidence=1 - 1e-4):
    """Between which counts the false alarms on new rows lie, by the exact law of split conformal prediction."""
    n, rank = len(detector.threshold.scores), detector.threshold.rank
    return betabinom(new, n + 1 - rank, rank).interval(confidence)


def state(detector):
    return detector.model.state_dict()


def assert_same_model(one, other):
    for name, value in state(one).items():
        assert torch.equal(value, state(other)[name]), name


def test_two_moons_false_alarm_rate_on_new_points():
    recipe = load_recipe("two-moons", ["training.epochs=3", "calibration.alpha=0.2", "data.calibration=0.2"])
    detector = fit_detector(recipe, two_moons(1000)).detector
    new = two_moons(3000, seed=1)
    found = detector.predict(new.inputs)
    low, high = false_alarm_interval(detector, len(new))
    assert low <= found.is_ood.sum() <= high
    p = np.sort(found.p_value)  # uniform, but for what 200 calibration rows can tell
    assert np.abs(p - np.linspace(0, 1, len(p))).max() < 0.15


def test_digits_false_alarm_rate_and_what_is_flagged():
    everything = digits()
    train, test = everything.split(0.7, seed=5)
    overrides = ["training.epochs=5", "data.classes=[0, 1, 2, 3, 4, 5, 6, 7]", "data.calibration=0.25"]
    fitted = fit_detector(load_recipe("digits", overrides), train)
    detector = fitted.detector
    assert detector.class_names == tuple("01234567")
    known = keep_classes(test, set("01234567"))
    found = detector.predict(known.inputs)
    low, high = false_alarm_interval(detector, len(known))
    assert low <= found.is_ood.sum() <= high
    assert (found.labels == np.array(known.class_names)[known.labels]).mean() > 0.8
    noise = made_up_outliers(known.inputs, kinds=["uniform-noise"])["uniform-noise"]
    assert detector.predict(noise).is_ood.mean() > 0.9
    unseen = test.subset(np.flatnonzero(test.labels >= 8))
    assert detector.predict(unseen.inputs).is_ood.mean() > 2 * found.is_ood.mean()


def test_the_same_seed_gives_the_same_detector(tiny_recipe, moons):
    one, other = (fit_detector(tiny_recipe("score.name=auto"), moons) for _ in range(2))
    assert_same_model(one.detector, other.detector)
    assert one.history == other.history
    new = two_moons(40, seed=1).inputs
    assert np.array_equal(one.detector.predict(new).p_value, other.detector.predict(new).p_value)
    third = fit_detector(tiny_recipe("training.seed=7"), moons)
    assert third.history != one.history


def test_the_callers_random_numbers_are_left_alone(tiny_recipe, moons):
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    fit_detector(tiny_recipe("score.name=auto"), moons)
    assert torch.equal(torch.rand(3), expected)


def test_calibration_rows_influence_the_threshold_only(tiny_recipe, moons):
    """Other inputs in the calibration rows: the model, its densities and the choice of the score stay to the last bit."""
    recipe = tiny_recipe("score.name=auto", "score.neighbour=3", "training.patience=2", "training.epochs=4")
    fitted = fit_detector(recipe, moons)
    position = {row.tobytes(): place for place, row in enumerate(moons.inputs)}
    held_out = [position[row.tobytes()] for row in fitted.split.calibration.inputs]
    learned_from = [position[row.tobytes()] for part in (fitted.split.training, fitted.split.validation) for row in part.inputs]
    assert not set(held_out) & set(learned_from)
    assert len(held_out) + len(learned_from) == len(moons)
    changed = moons.inputs.copy()
    changed[held_out] += 100
    other = fit_detector(recipe, dataclasses.replace(moons, inputs=changed)).detector
    assert_same_model(fitted.detector, other)
    assert fitted.detector.provenance["score_choice"] == other.provenance["score_choice"]
    tensors, other_tensors = fitted.detector.scoring.state()[0], other.scoring.state()[0]
    assert all(torch.equal(value, other_tensors[name]) for name, value in tensors.items())
    assert torch.equal(fitted.detector.preprocessing.mean, other.preprocessing.mean)
    assert not torch.equal(fitted.detector.threshold.scores, other.threshold.scores)


def test_without_calibration_rows_the_detector_waits_for_some(tiny_recipe, moons):
    fitted = fit_detector(tiny_recipe("data.calibration=0"), moons)
    assert fitted.split.calibration is None
    assert fitted.detector.threshold is None
    assert len(fitted.detector.calibrate(two_moons(50, seed=1).inputs).predict(moons.inputs)) == len(moons)


def test_a_mistake_is_noticed_before_training(tiny_recipe, moons, never_started):
    for overrides, words in [
        (["score.name=bogus"], r"score.name='bogus' is unknown for be-snn: use one of auto, method"),
        (["method=softmax", "score.name=tempered-entropy"], "'tempered-entropy' is unknown for softmax"),
        (["score.name=combined", "data.validation=0"], "combined' needs validation data"),
        (["calibration.alpha=0.01"], r"32 calibration scores are too few for alpha=0.01.*data.calibration=0.2"),
        (["backbone.name=convnet"], "takes images"),
    ]:
        with pytest.raises(InputError, match=words):
            fit_detector(tiny_recipe(*overrides), moons, reporter=never_started)


def test_arguments_of_other_types_are_refused(tiny_recipe, moons):
    with pytest.raises(InputError, match="recipe is a str: pass one from load_recipe"):
        fit_detector("two-moons", moons)
    with pytest.raises(InputError, match=r"data is a ndarray: pass a besnn\.data\.Dataset"):
        fit_detector(tiny_recipe(), moons.inputs)


@pytest.mark.parametrize("rare", [1, 5])
def test_classes_without_training_rows_are_reported(tiny_recipe, moons, rare):
    class Listening(Reporter):
        def __init__(self):
            self.said = []

        def say(self, text):
            self.said.append(text)

    names = (*moons.class_names, *(f"rare {number}" for number in range(rare)))
    listening = Listening()
    fit_detector(tiny_recipe(), dataclasses.replace(moons, class_names=names), reporter=listening)
    named = "'rare 0'" if rare == 1 else "'rare 0', 'rare 1', 'rare 2' and 2 more"
    assert listening.said == [f"no rows of class {named} are left to train on: add some, or lower data.calibration"]


def test_a_stopped_run_continues_to_the_same_file(tiny_recipe, moons, tmp_path):
    class Stop(Reporter):
        def __init__(self):
            self.left = 7

        def step(self):
            self.left -= 1
            if not self.left:
                raise KeyboardInterrupt

    recipe = tiny_recipe("score.name=auto")
    whole = fit_detector(recipe, moons)
    with pytest.raises(KeyboardInterrupt):
        fit_detector(recipe, moons, run_folder=tmp_path / "run", reporter=Stop(), checkpoint_every=2, checkpoint_pause=0)
    continued = fit_detector(recipe, moons, run_folder=tmp_path / "run", resume=True)
    assert continued.history == whole.history
    for fitted, name in ((whole, "whole"), (continued, "continued")):
        fitted.detector.save(tmp_path / name)
    expected, _ = read_tensor_file(tmp_path / "whole", MODEL_FILE)
    found, _ = read_tensor_file(tmp_path / "continued", MODEL_FILE)
    assert all(torch.equal(found[name], value) for name, value in expected.items())


@pytest.mark.parametrize("what", ["recipe", "training rows", "validation rows", "labels"])
def test_a_run_continues_only_as_itself(what, tiny_recipe, moons, tmp_path):
    fitted = fit_detector(tiny_recipe(), moons, run_folder=tmp_path)
    fit_detector(tiny_recipe(), moons, run_folder=tmp_path, resume=True)
    recipe = tiny_recipe(*(["training.epochs=4"] if what == "recipe" else []))
    inputs, labels = moons.inputs.copy(), moons.labels.copy()
    part = fitted.split.validation if what == "validation rows" else fitted.split.training
    row = int(np.flatnonzero((moons.inputs == part.inputs[0]).all(axis=1))[0])
    if "rows" in what:
        inputs[row] += 1e-3
    if what == "labels":
        labels[row] = 1 - labels[row]
    with pytest.raises(InputError, match="another recipe or other data"):
        fit_detector(recipe, dataclasses.replace(moons, inputs=inputs, labels=labels), run_folder=tmp_path, resume=True)


class CountsSteps(Reporter):
    steps = 0

    def step(self):
        self.steps += 1


def test_a_trained_run_takes_another_score_and_false_alarm_rate(tiny_recipe, moons, tmp_path):
    first = fit_detector(tiny_recipe(), moons, run_folder=tmp_path).detector
    changed = tiny_recipe("name=mine", "score.name=class-gaussian", "score.densities=[class-gaussian]", "calibration.alpha=0.2")
    reporter = CountsSteps()
    second = fit_detector(changed, moons, run_folder=tmp_path, resume=True, reporter=reporter).detector
    assert reporter.steps == 0  # nothing is trained again
    assert_same_model(first, second)
    expected = fit_detector(changed, moons).detector
    assert (second.scoring.name, second.threshold.alpha, second.recipe) == ("class-gaussian", 0.2, expected.recipe)
    np.testing.assert_array_equal(second.score(moons.inputs), expected.score(moons.inputs))


def test_a_folder_that_streams_gives_the_detector_of_its_arrays(tiny_recipe, stripe_folder, tmp_path):
    recipe = tiny_recipe("backbone.hidden=[4]", "data.calibration=0.35", "score.name=combined", "score.neighbour=3")
    arrays = fit_detector(recipe, load_or_stream(stripe_folder))
    folder = load_or_stream(stripe_folder, byte_budget=0)
    streamed = fit_detector(recipe, folder, run_folder=tmp_path)
    assert not isinstance(streamed.split.training, Dataset)
    assert_same_model(arrays.detector, streamed.detector)
    assert torch.equal(arrays.detector.threshold.scores, streamed.detector.threshold.scores)
    assert streamed.detector.provenance["measured"] == arrays.detector.provenance["measured"]
    assert streamed.detector.provenance["data"] == folder.hashes
    again = fit_detector(recipe, folder, run_folder=tmp_path, resume=True)
    assert_same_model(again.detector, streamed.detector)
    with pytest.raises(InputError, match="other data"):
        fit_detector(recipe, folder.subset(range(63)), run_folder=tmp_path, resume=True)


def test_provenance_of_the_data(tiny_recipe, moons, tmp_path):
    noted = dataclasses.replace(moons, note="only a part of it")
    detector = fit_detector(tiny_recipe(), noted).detector
    detector.save(tmp_path / "model.safetensors")
    loaded = Detector.load(tmp_path / "model.safetensors")
    assert loaded.provenance["data"] == moons.hashes
    assert loaded.provenance["data_note"] == "only a part of it"
    assert loaded.feature_names == ("x1", "x2")


def test_inputs_without_variation_are_refused_before_training(tiny_recipe, never_started):
    constant = Dataset(np.ones((200, 2), np.float32), np.arange(200) % 2, ("a", "b"), "constant")
    for score in ("auto", "combined", "class-gaussian"):
        with pytest.raises(InputError, match="constant: all inputs of a class are equal"):
            fit_detector(tiny_recipe(f"score.name={score}"), constant, reporter=never_started)


@pytest.mark.parametrize("method", list(METHODS))
def test_one_class_is_recognised_by_the_density_of_its_features(tiny_recipe, method):
    near = np.random.default_rng(0).normal(size=(300, 2)).astype(np.float32)
    one = Dataset(near, np.zeros(300, np.int64), ("product",), "near")
    constant = "score.densities=[nearest-neighbour, relative-mahalanobis]"  # the second has nothing to compare the class with
    recipe = tiny_recipe("score.name=auto", constant, f"method={{name: {method}}}", "training.patience=2")
    fitted = fit_detector(recipe, one)
    detector, history = fitted.detector, fitted.history
    assert [row["epoch"] for row in history] == [1]
    assert "validation_accuracy" not in history[0]
    assert detector.scoring.name == "combined"
    assert {density_kind(name) for name in detector.scoring.densities} == {"nearest-neighbour", "class-gaussian"}
    assert detector.predict(near + 30).is_ood.all()
    assert detector.predict(np.random.default_rng(1).normal(size=(500, 2)).astype(np.float32)).is_ood.mean() < 0.2
    assert set(detector.predict(near).labels) == {"product"}
    again = Detector.from_bytes(detector.to_bytes())
    np.testing.assert_allclose(again.score(near), detector.score(near), rtol=1e-4, atol=1e-5)


def test_one_class_has_no_score_of_the_method_itself(tiny_recipe, never_started):
    one = Dataset(np.random.default_rng(0).normal(size=(200, 2)).astype(np.float32), np.zeros(200, np.int64), ("it",), "one")
    with pytest.raises(InputError, match=r"score.name='method' is the same for all inputs with one class: use auto"):
        fit_detector(tiny_recipe("score.name=method"), one, reporter=never_started)
    detector = fit_detector(tiny_recipe("score.name=auto", "data.validation=0"), one).detector
    assert detector.scoring.name == "class-gaussian"  # nothing is held out to combine scores on


def test_the_time_of_all_legs_of_a_run_is_counted(tiny_recipe, moons, tmp_path, monkeypatch):
    def stop(*arguments):
        raise KeyboardInterrupt

    options = {"run_folder": tmp_path, "resume": True}
    monkeypatch.setattr(module, "fit_scoring", stop)
    with pytest.raises(KeyboardInterrupt):
        fit_detector(tiny_recipe(), moons, **options)
    monkeypatch.undo()
    tensors, header = read_tensor_file(checkpoint_in(tmp_path), CHECKPOINT)
    assert header["progress"]["seconds"] > 0
    header["progress"]["seconds"] += 1000  # as if the first leg had taken long
    del header["format"], header["version"]
    write_tensor_file(checkpoint_in(tmp_path), CHECKPOINT, tensors, header)
    assert 1000 < fit_detector(tiny_recipe(), moons, **options).detector.provenance["seconds"] < 1900
