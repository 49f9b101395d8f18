import copy
import dataclasses
import resource
import sys
import time
import warnings

import numpy as np
import pytest
import torch
from torch import nn

from besnn import BESNN, Detector
from besnn.data import Dataset, two_moons
from besnn.detection import benjamini_hochberg, scores_for
from besnn.detector import Prediction, Predictions
from besnn.errors import DataError, InputError, NotReadyError
from besnn.model import Preprocessing
from besnn.storage.tensor_file import MODEL_FILE, read_tensor_file, write_tensor_file
from besnn.training.fit import fit_detector

METHODS = ["be-snn", "softmax", "duq", "gaussian", "deep-ensemble", "batch-ensemble"]
SCALED = "{name: be-snn, length_scale: 0.5}"
NEW = two_moons(50, seed=3).inputs


@pytest.fixture(scope="module")
def fitted(tiny_recipe, moons, stripes):
    """Trained and calibrated detectors, each made once."""
    made = {}

    def make(method="be-snn", score="method", images=False):
        key = method, score, images
        if key not in made:
            settings = [] if method == "be-snn" else [f"method={method}"]
            settings += ["backbone.hidden=[4, 4]", "data.calibration=0.4"] if images else []
            recipe = tiny_recipe(*settings, f"score.name={score}", "training.epochs=2", "score.neighbour=3")
            made[key] = fit_detector(recipe, stripes if images else moons).detector
        return made[key]

    return make


def probabilities_by_hand(kind, evidence):
    """Mean over members in float64, the plain way."""
    evidence = evidence.double().numpy()
    kernels = np.exp(-evidence) if kind == "distances" else np.exp(evidence - evidence.max(axis=2, keepdims=True))
    if kind != "distances":
        kernels /= kernels.sum(axis=2, keepdims=True)
    mean = kernels.mean(axis=0)
    return mean / mean.sum(axis=1, keepdims=True)


@pytest.mark.parametrize("images", [False, True])
@pytest.mark.parametrize("method", [*METHODS, SCALED])
def test_predictions_are_those_of_the_plain_model(method, images, fitted, stripes):
    detector = fitted(method, images=images)
    new = stripes.inputs[::3] if images else NEW
    found = detector.predict(new)
    model = detector.model
    with torch.no_grad():
        evidence = model(detector.preprocessing(torch.from_numpy(new)))
    expected = probabilities_by_hand(model.evidence_kind, evidence) ** (1 / detector.decision.labels.temperature)
    expected /= expected.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(found.probabilities, expected, rtol=1e-3, atol=1e-5)
    assert np.array_equal(found.indices, expected.argmax(axis=1))
    assert found.labels.tolist() == [detector.class_names[index] for index in found.indices]
    score = scores_for(model.evidence_kind)[model.default_score](evidence)
    np.testing.assert_allclose(found.score, score, rtol=1e-3, atol=1e-4)
    calibration = detector.threshold.scores.numpy()
    at_least = (calibration[None] >= found.score[:, None]).sum(axis=1)
    np.testing.assert_allclose(found.p_value, (1 + at_least) / (1 + len(calibration)))
    assert np.array_equal(found.is_ood, found.p_value <= detector.threshold.alpha)
    alone = np.stack([probabilities_by_hand(model.evidence_kind, member[None]) for member in evidence])
    assert np.array_equal(found.member_labels, alone.argmax(axis=2))
    np.testing.assert_allclose(found.member_probabilities, alone.max(axis=2), rtol=1e-3)
    assert np.array_equal(detector.score(new), found.score)


SCORES = ["nearest-neighbour", "class-gaussian", "combined"]


@pytest.mark.parametrize(
    ("method", "score", "images"),
    [(method, "method", False) for method in (*METHODS, SCALED)]
    + [("deep-ensemble", "nearest-neighbour", True)]
    + [("be-snn", score, images) for score in SCORES for images in (False, True)],
)
def test_a_saved_detector_predicts_the_same_to_the_last_bit(method, score, images, fitted, stripes, tmp_path):
    detector = fitted(method, score, images)
    path = tmp_path / "model.safetensors"
    detector.save(path)
    loaded = Detector.load(path)
    new = stripes.inputs[:20] if images else NEW
    one, other = detector.predict(new), loaded.predict(new)
    for field in dataclasses.fields(one):
        assert np.array_equal(getattr(one, field.name), getattr(other, field.name)), field.name
    for name in ("class_names", "feature_names", "recipe", "layer", "provenance", "input_shape"):
        assert getattr(detector, name) == getattr(loaded, name), name
    assert (loaded.threshold.alpha, loaded.threshold.delta) == (detector.threshold.alpha, detector.threshold.delta)
    assert loaded.scoring.names == detector.scoring.names
    again = tmp_path / "again.safetensors"
    loaded.save(again)
    assert again.read_bytes() == path.read_bytes()


@pytest.mark.parametrize("method", METHODS)
def test_half_the_bits_are_enough_for_weights(method, fitted, stripes, tmp_path):
    detector = fitted(method, images=True)
    path = tmp_path / "half.safetensors"
    detector.save(path, half=True)
    kept, _ = read_tensor_file(path, MODEL_FILE)
    assert {kept[name].dtype for name in kept if name.startswith("model/") and kept[name].ndim > 1} == {torch.float16}
    loaded = Detector.load(path)
    assert {value.dtype for value in loaded.model.state_dict().values()} == {
        value.dtype for value in detector.model.state_dict().values()
    }
    new = stripes.inputs[::3]
    np.testing.assert_allclose(loaded.score(new), detector.score(new), rtol=0.02, atol=0.02)


def test_a_saved_detector_uses_several_layers(tiny_recipe, stripes, tmp_path):
    settings = "backbone.hidden=[4, 4]", "data.calibration=0.4", "score.name=nearest-neighbour", "score.neighbour=3"
    detector = fit_detector(tiny_recipe(*settings, "score.layer=trunk.2+trunk", "training.epochs=1"), stripes).detector
    detector.save(tmp_path / "model.safetensors")
    loaded = Detector.load(tmp_path / "model.safetensors")
    assert loaded.layer == read_tensor_file(tmp_path / "model.safetensors", MODEL_FILE)[1]["layer"] == "trunk.2+trunk"
    assert np.array_equal(loaded.score(stripes.inputs), detector.score(stripes.inputs))
    np.testing.assert_allclose(loaded.score(stripes.inputs, batch_size=5), detector.score(stripes.inputs), atol=1e-5)


def test_the_file_holds_its_provenance(fitted, tmp_path, moons):
    fitted().save(tmp_path / "model.safetensors")
    _, header = read_tensor_file(tmp_path / "model.safetensors", MODEL_FILE)
    assert header["recipe"]["training"]["epochs"] == 2
    assert header["recipe"]["backbone"]["name"] == "mlp"  # what `auto` came to
    assert header["provenance"]["data"] == moons.hashes
    assert torch.__version__.startswith(header["provenance"]["versions"]["torch"])  # and the build, such as +cu130
    assert {"commit", "date", "hardware", "seconds"} <= header["provenance"].keys()
    assert header["class_names"] == ["upper", "lower"]
    assert header["feature_names"] == ["x1", "x2"]
    assert (header["calibration"]["alpha"], header["calibration"]["delta"]) == (0.05, None)
    assert header["calibration"]["labels"]["alpha"] == 0.05


def test_a_file_from_before_decisions_still_decides(fitted, tmp_path):
    detector, path = fitted(), tmp_path / "model.safetensors"
    tensors, header = detector._to_parts()
    header["calibration"] = {"alpha": 0.05, "delta": None}
    write_tensor_file(path, MODEL_FILE, {name: each for name, each in tensors.items() if "/labels/" not in name}, header)
    old, new = Detector.load(path).predict(NEW), detector.predict(NEW)
    assert np.array_equal(old.is_ood, new.is_ood)
    assert np.array_equal(old.p_value, new.p_value)
    assert np.array_equal(old.labels, new.labels)
    assert set(old.decision) <= {"known", "unknown"}


@pytest.mark.parametrize("promises", [{"per_class": True, "label_sets": "adaptive"}, {"max_error": 0.3, "delta": 0.2}])
def test_all_promises_are_saved(promises, fitted, moons, tmp_path):
    detector = copy.copy(fitted()).calibrate(moons.inputs, labels=moons.labels, **promises)
    detector.save(tmp_path / "model.safetensors")
    loaded = Detector.load(tmp_path / "model.safetensors")
    one, other = detector.predict(NEW), loaded.predict(NEW)
    for field in dataclasses.fields(one):
        assert np.array_equal(getattr(one, field.name), getattr(other, field.name)), field.name
    assert (loaded.decision.by_class is None) == ("per_class" not in promises)
    assert loaded.decision.labels.max_error == promises.get("max_error")


def test_calibration_labels_must_fit(fitted, moons):
    detector = copy.copy(fitted())
    with pytest.raises(InputError, match="label 2 is out of range"):
        detector.calibrate(moons.inputs, labels=np.full(len(moons), 2))
    with pytest.raises(InputError, match=r"labels have shape \[1\]"):
        detector.calibrate(moons.inputs, labels=[0])


def test_false_discoveries_are_controlled_over_the_batch(fitted, moons):
    detector = copy.copy(fitted("be-snn", "class-gaussian", False)).calibrate(moons.inputs, labels=moons.labels)
    predictions = detector.predict(np.concatenate([moons.inputs, moons.inputs[:50] + 30]))
    found = predictions.control_fdr(0.1)
    assert np.array_equal(found.is_ood, benjamini_hochberg(predictions.p_value, 0.1))
    assert found.is_ood[-50:].all()
    assert found.is_ood.sum() != predictions.is_ood.sum()
    assert np.array_equal(found.decision == "unknown", found.is_ood)
    assert np.array_equal(found.label_sets.sum(axis=1) == 0, found.is_ood)
    assert set(found.decision[predictions.is_ood & ~found.is_ood]) <= {"unsure"}


def test_a_detector_that_is_not_calibrated_says_so(fitted, moons, tmp_path):
    detector = fitted()
    plain = Detector(detector.model, detector.preprocessing, detector.class_names, detector.recipe)
    plain.save(tmp_path / "model.safetensors")
    loaded = Detector.load(tmp_path / "model.safetensors")
    with pytest.raises(NotReadyError, match=r"not calibrated: call calibrate"):
        loaded.predict(NEW)
    assert np.array_equal(loaded.score(NEW), detector.score(NEW))
    assert len(loaded.calibrate(moons.inputs, alpha=0.2).predict(NEW)) == len(NEW)
    assert loaded.threshold.alpha == 0.2


@pytest.mark.parametrize("method", METHODS)
def test_empty_input(method, fitted):
    found = fitted(method).predict(np.empty((0, 2), np.float32))
    assert len(found) == 0
    assert found.probabilities.shape == (0, 2)
    assert found.member_labels.shape == (fitted(method).model.members, 0)
    assert fitted(method).score(np.empty((0, 2))).shape == (0,)


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        (np.zeros((3, 5)), r"shape \[3, 5\]: this model takes \[n, 2\]"),
        (np.zeros(2), r"shape \[2\]"),
        (np.float64(3), r"shape \[\]"),
        ([], r"shape \[0\]"),
        (np.zeros((3, 2), complex), "complex"),
        (np.zeros((3, 2), bool), "bool"),
        ([["a", "b"]], "not an array of numbers"),
        ([[1.0], [1.0, 2.0]], "not an array of numbers"),
        ([[1.0, None]], "not an array of numbers"),
        ([[1.0, 2.0], [1.0, float("nan")]], "input 1 contains NaN"),
        ([[1.0, 2.0], [1.0, 2.0], [-float("inf"), 0.0]], "input 2 contains NaN"),
    ],
)
def test_wrong_table_inputs_get_one_line(inputs, words, fitted):
    for use in (fitted().predict, fitted().score, fitted().outputs):  # outputs: at the call, not at the first batch
        with pytest.raises(InputError, match=words) as caught:
            use(inputs)
        assert "\n" not in str(caught.value)


def test_wrong_images_get_one_line(fitted, stripes):
    detector = fitted(images=True)
    with pytest.raises(InputError, match=r"shape \[64, 1, 4, 8\]: this model takes \[n, 1, 8, 8\]"):
        detector.predict(stripes.inputs[:, :, ::2])
    with pytest.raises(InputError, match=r"dtype torch.float32: pass pixels from 0 to 255 as uint8"):
        detector.predict(stripes.inputs.astype(np.float32))


def test_numbers_may_come_in_any_form(fitted):
    detector = fitted()
    expected = detector.score(NEW)
    read_only = NEW.copy()
    read_only.setflags(write=False)
    forms = [NEW.tolist(), torch.from_numpy(NEW), NEW.astype(np.float64), read_only, np.asfortranarray(NEW), NEW[::-1][::-1]]
    for form in forms:
        np.testing.assert_allclose(detector.score(form), expected, rtol=1e-6)
    whole = np.array([[1, 2], [3, 4]])
    assert np.array_equal(detector.score(whole), detector.score(whole.astype(np.float32)))


@pytest.mark.parametrize(("method", "score"), [*((each, "method") for each in METHODS), *(("be-snn", each) for each in SCORES)])
def test_no_finite_input_is_too_far(method, score, fitted):
    far = np.array([[1e300, -1e300], [3e38, 3e38], [-1e30, 1e-30], [1e10, 0]])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = fitted(method, score).predict(far)
    assert np.isfinite(found.score).all()
    assert np.isfinite(found.probabilities).all()
    np.testing.assert_allclose(found.probabilities.sum(axis=1), 1, rtol=1e-4)


def test_batches_of_any_size_say_the_same(fitted):
    whole = fitted().predict(NEW)
    for size in (1, 7, 50):
        parts = fitted().predict(NEW, batch_size=size)
        np.testing.assert_allclose(parts.score, whole.score, rtol=1e-4, atol=1e-5)
        assert np.array_equal(parts.labels, whole.labels)


def test_other_scores_by_name(fitted):
    detector = fitted("be-snn", "combined")
    with torch.no_grad():
        distances = detector.model(detector.preprocessing(torch.from_numpy(NEW)))
    for name in scores_for("distances"):
        np.testing.assert_allclose(detector.score(NEW, name), scores_for("distances")[name](distances), rtol=1e-3, atol=1e-4)
    assert not np.allclose(detector.score(NEW, "nearest-neighbour"), detector.score(NEW))
    with pytest.raises(InputError, match="no score 'bogus': use one of tempered-entropy"):
        detector.score(NEW, "bogus")


def test_gradients_of_a_score_reach_the_input_also_after_predicting(fitted):
    detector = fitted()
    detector.predict(NEW)
    raw = torch.from_numpy(NEW.copy()).requires_grad_()
    evidence, features = detector.network(None)(raw)
    detector.scoring.score(evidence, features).sum().backward()
    assert raw.grad.abs().sum() > 0


def test_one_name_for_each_class(fitted):
    detector = fitted()
    with pytest.raises(InputError, match="3 class names for a model with 2 classes"):
        Detector(detector.model, detector.preprocessing, ("a", "b", "c"))


# --- a network of one's own ---


class Own(nn.Module):
    def __init__(self, width=6):
        super().__init__()
        self.first, self.last = nn.Linear(2, width), nn.Linear(width, 3)

    def forward(self, x):
        return self.last(torch.tanh(self.first(x)))


def own_model(width=6):
    return BESNN(Own(width), num_classes=2, feature_dim=3, members=2, noise_dim=4, hidden_dim=5)


def test_a_network_of_ones_own_is_loaded_with_a_model_like_it(moons, tmp_path):
    preprocessing = Preprocessing.fit(torch.from_numpy(moons.inputs))
    detector = Detector(own_model(), preprocessing, moons.class_names).calibrate(moons.inputs)
    path = tmp_path / "own.safetensors"
    detector.save(path)
    with pytest.raises(InputError, match=r"network of your own: pass an untrained model like it") as caught:
        Detector.load(path)
    assert str(path) in str(caught.value)
    loaded = Detector.load(path, model=own_model())
    assert np.array_equal(loaded.predict(NEW).score, detector.predict(NEW).score)
    with pytest.raises(DataError, match="does not match"):
        Detector.load(path, model=own_model(width=7))
    with pytest.raises(DataError, match=r"float64"):
        Detector.load(path, model=own_model().double())


def test_loads_whatever_the_process_has_for_a_default_type(path):
    expected = Detector.load(path).predict(NEW)
    torch.set_default_dtype(torch.float64)
    try:
        found = Detector.load(path).predict(NEW)
        assert torch.get_default_dtype() == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
    assert np.array_equal(found.score, expected.score)


# --- files that are not what they should be ---


@pytest.fixture
def path(fitted, tmp_path):
    target = tmp_path / "model.safetensors"
    fitted("be-snn", "combined").save(target)
    return target


def refused(path, *words):
    with pytest.raises(DataError) as caught:
        Detector.load(path)
    message = str(caught.value)
    assert "\n" not in message
    assert str(path) in message
    for word in words:
        assert word in message


def test_damaged_and_absent_files(path, tmp_path):
    path.write_bytes(path.read_bytes()[:-1])
    refused(path, "truncated", "get a fresh copy")
    refused(tmp_path / "absent.safetensors", "does not exist")


def altered(path, change):
    """Write the file again with a matching digest."""
    tensors, header = read_tensor_file(path, MODEL_FILE)
    change(tensors, header)
    write_tensor_file(path, MODEL_FILE, tensors, header)


WEIGHT = "model/feature_extractor.0.weight"


@pytest.mark.parametrize(
    "change",
    [
        lambda tensors, header: tensors.pop(WEIGHT),
        lambda tensors, header: tensors.update({"model/extra": torch.ones(1)}),
        lambda tensors, header: tensors.update({WEIGHT: torch.ones(2, 2)}),
        lambda tensors, header: tensors.update({WEIGHT: tensors[WEIGHT].bfloat16()}),
        lambda tensors, header: tensors.update({"model/class_mean": torch.ones(1, 1, 1)}),
        lambda tensors, header: tensors.update({"model/class_mean": tensors["model/class_mean"].double()}),
        lambda tensors, header: tensors.pop("model/class_spread"),
        lambda tensors, header: tensors.pop("preprocessing/mean"),
        lambda tensors, header: tensors.update({"preprocessing/std": torch.zeros(2)}),
        lambda tensors, header: tensors.pop("calibration/scores"),
        lambda tensors, header: tensors.update({"calibration/scores": torch.ones(3)}),
        lambda tensors, header: tensors.pop("density/nearest-neighbour/codes"),
        lambda tensors, header: tensors.update({"density/nearest-neighbour/metric": torch.tensor(99)}),
        lambda tensors, header: [tensors.pop(name) for name in list(tensors) if name.startswith("combined/")],
        lambda tensors, header: header.pop("class_names"),
        lambda tensors, header: header.update(class_names=["a", "b", "c"]),
        lambda tensors, header: header.update(input_shape=[3]),
        lambda tensors, header: header.update(input_shape=[]),
        lambda tensors, header: header.update(input_shape=[1, 8, 8]),
        lambda tensors, header: header.update(scoring={"name": "bogus", "densities": []}),
        lambda tensors, header: header.update(scoring={"name": "combined", "densities": ["os.system"]}),
        lambda tensors, header: header.update(calibration={"alpha": 2, "delta": None}),
        lambda tensors, header: header.update(layer=[["x"]]),
        lambda tensors, header: header.update(feature_names=[["x"], "y"]),
        lambda tensors, header: header.update(recipe="two-moons"),
        lambda tensors, header: header["recipe"]["backbone"].update(hidden=[9]),
        lambda tensors, header: header["recipe"]["method"].update(name="softmax"),
        lambda tensors, header: header["recipe"]["data"].update(danger="rm -rf"),
    ],
)
def test_an_inconsistent_file_is_refused_in_one_line(change, path):
    altered(path, change)
    refused(path, "does not match its own description")


@pytest.mark.parametrize(
    "change",
    [
        lambda header: header["recipe"]["backbone"].update(hidden=[10**9, 10**9]),
        lambda header: header["recipe"]["backbone"].update(hidden=[1] * 100_000),
        lambda header: header["recipe"]["method"].update(hidden_dim=10**15, noise_dim=10**15),
        lambda header: header["recipe"]["method"].update(members=10**9),
        lambda header: header["recipe"].update(method={"name": "deep-ensemble", "members": 10**9}),
        lambda header: header.update(input_shape=[10**30]),
    ],
)
def test_a_description_of_absurd_size_takes_neither_memory_nor_time(change, path):
    altered(path, lambda tensors, header: change(header))
    began, before = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    refused(path, "does not match its own description")
    assert time.monotonic() - began < 5
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # kilobytes


def test_loading_unpickles_and_starts_nothing(path):
    seen, watching = [], [True]

    def watch(event, arguments):  # there is no way to take an audit hook away again
        if watching[0] and event.split(".")[0] in ("pickle", "subprocess", "os.system", "marshal", "socket", "ctypes.dlopen"):
            seen.append(event)

    sys.addaudithook(watch)
    try:
        Detector.load(path)
    finally:
        watching[0] = False
    assert seen == []


TWO = Predictions(
    labels=np.array(["cat", "dog"]),
    indices=np.array([0, 1]),
    probabilities=np.array([[0.75, 0.25], [0.125, 0.875]], np.float32),
    score=np.array([0.5, 2.0], np.float32),
    p_value=np.array([0.25, 0.01]),
    is_ood=np.array([False, True]),
    decision=np.array(["unsure", "unknown"]),
    label_sets=np.array([[True, True], [False, False]]),
    member_labels=np.array([[0, 1], [0, 0]]),
    member_probabilities=np.array([[0.5, 0.75], [0.75, 0.5]], np.float32),
)


def test_one_row_per_input():
    assert len(TWO) == 2
    assert list(TWO) == [
        Prediction("cat", 0.75, 0.5, 0.25, False, "unsure"),
        Prediction("dog", 0.875, 2.0, 0.01, True, "unknown"),
    ]
    assert [type(value) for value in next(iter(TWO))] == [str, float, float, float, bool, str]
    assert TWO.named_label_sets(["cat", "dog"]) == [["cat", "dog"], []]
    assert list(TWO[:0]) == []


def test_some_of_the_rows():
    second = TWO[1:]
    assert list(second) == list(TWO)[1:]
    assert second.member_labels.tolist() == [[1], [0]]
    assert second.member_probabilities.tolist() == [[0.75], [0.5]]
    assert second.indices.tolist() == [1]


@pytest.fixture(scope="module")
def detector(tiny_recipe, moons):
    return fit_detector(tiny_recipe("score.name=combined"), moons).detector


@pytest.fixture(scope="module")
def far(moons):
    return Dataset(moons.inputs + 50, None, (), "far away", {"far": "abc"}, note="made up")


def test_a_set_gets_every_score(detector, moons):
    answers = detector._scored_set(moons, None, progress=lambda inputs: None)
    predictions = detector.predict(moons.inputs)
    assert list(answers.scores) == detector.scoring.names
    assert "combined" in answers.scores
    np.testing.assert_array_equal(answers.scores["combined"], predictions.score)
    np.testing.assert_array_equal(answers.predictions, predictions.indices)
    np.testing.assert_array_equal(answers.is_ood, predictions.is_ood)


def test_an_evaluation_carries_names_figures_and_provenance(detector, moons, far):
    names = [f"point {row}" for row in range(len(far))]
    counted: list[int] = []
    told = {"title": "Moons", "input_names": {"far": names}, "provenance": {"date": "today"}}
    evaluation = detector.evaluate(moons, {"far": far}, **told, progress=counted.append)
    assert sum(counted) == len(moons) + len(far)
    assert evaluation.calibrated == len(detector.threshold.scores)
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
