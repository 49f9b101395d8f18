"""An exported detector gives the same answers as the library: as a torch program and in ONNX Runtime."""

import copy
import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from besnn.data import Dataset, digits, made_up_outliers, two_moons
from besnn.detection import ClassGaussianDensity, CombinedScore, NearestNeighbourDensity, ScoreSet
from besnn.detection.densities import LayerDensity
from besnn.detection.label_rule import DECISIONS
from besnn.detector import Detector
from besnn.errors import InputError, NotReadyError
from besnn.export import _ScoreNetwork, export, export_program
from besnn.training import load_recipe
from besnn.training.choose_score import fit_scoring
from besnn.training.fit import Fitted, fit_detector

ort = pytest.importorskip("onnxruntime", reason="the onnx extra is not installed")

SCORES = {
    "tempered-entropy": "trunk",
    "nearest-neighbour": "trunk.2+trunk",
    "combined": "trunk.2,trunk",  # and far away, at the pixels
}
"""Each with the layers that densities are fitted to: one, several together, several apart."""
FEW = ["score.densities=[nearest-neighbour, class-gaussian]"]


def fitted(recipe: str, dataset: Dataset, *overrides: str) -> Detector:
    return fit_detector(load_recipe(recipe, [*FEW, *overrides]), dataset).detector


@pytest.fixture(scope="module")
def framed() -> Dataset:
    """Digits as 9 × 9 images, which a grid of 2 × 2 does not divide."""
    return dataclasses.replace(digits(), inputs=np.pad(digits().inputs, [(0, 0), (0, 0), (1, 0), (1, 0)]))


@pytest.fixture(scope="module")
def trained(framed: Dataset) -> Fitted:
    small = ["method.members=2", "training.epochs=5", "backbone.hidden=[8, 16]", "score.name=method"]
    return fit_detector(load_recipe("digits", small), framed)


@pytest.fixture(params=SCORES)
def digits_detector(request: pytest.FixtureRequest, trained: Fitted) -> Detector:
    """The same network with each score."""
    name, detector = request.param, copy.copy(trained.detector)
    far = ["score.far=pixels"] if name == "combined" else []
    score = load_recipe("digits", [*FEW, f"score.name={name}", f"score.layer={SCORES[name]}", *far]).score
    fit_scoring(detector, score, trained.split.training, trained.split.validation)
    assert detector.scoring.name == name
    held_out = trained.split.calibration
    return detector.calibrate(held_out.inputs, labels=held_out.labels)


@pytest.fixture(scope="module")
def inputs(framed: Dataset) -> np.ndarray:
    known = framed.inputs[:150]
    return np.concatenate([known, *made_up_outliers(known[:50]).values()])


def exported_answers(detector: Detector, path: Path, form: str, inputs: np.ndarray) -> list[np.ndarray]:
    """Label, probabilities, score, p-value and decision, from a file alone."""
    export(detector, path, form)
    if form == "onnx":
        return ort.InferenceSession(path, providers=["CPUExecutionProvider"]).run(None, {"inputs": inputs})
    with torch.no_grad():
        return [part.numpy() for part in torch.export.load(str(path)).module()(torch.from_numpy(inputs))]


def assert_equal_answers(detector: Detector, inputs: np.ndarray, answers: list[np.ndarray]) -> None:
    expected = detector.predict(inputs)
    label, probabilities, score, p_value, is_ood, decision, label_set = answers
    np.testing.assert_array_equal(label, expected.indices)
    np.testing.assert_allclose(probabilities, expected.probabilities, atol=1e-4)
    np.testing.assert_allclose(score, expected.score, rtol=5e-4, atol=1e-4)  # Gaussians enlarge what logarithms round
    # Scores may round across calibration scores, so p-values and decisions are held against the graph's own scores.
    np.testing.assert_allclose(p_value, detector.threshold.p_values(score), rtol=1e-6)
    np.testing.assert_array_equal(is_ood, detector.threshold.is_ood(score))
    same = is_ood == expected.is_ood
    assert same.mean() > 0.9
    np.testing.assert_array_equal(np.array(DECISIONS)[decision][same], expected.decision[same])
    np.testing.assert_array_equal(label_set[same], expected.label_sets[same])
    assert is_ood.any()
    assert not is_ood.all()


@pytest.mark.parametrize("digits_detector", ["tempered-entropy", "combined"], indirect=True)
def test_onnx_runtime_gives_the_detectors_answers_for_any_batch(digits_detector, inputs, tmp_path):
    export(digits_detector, tmp_path / "model.onnx")
    session = ort.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
    assert_equal_answers(digits_detector, inputs, session.run(None, {"inputs": inputs}))
    for count in (1, 7):
        (label, *_) = session.run(None, {"inputs": inputs[:count]})
        assert label.shape == (count,)
    names = json.loads(session.get_modelmeta().custom_metadata_map["class_names"])
    assert names == list(digits_detector.class_names)


@pytest.mark.parametrize("digits_detector", ["nearest-neighbour"], indirect=True)
def test_torch_program_gives_the_detectors_answers_after_a_round_trip(digits_detector, inputs, tmp_path):
    answers = exported_answers(digits_detector, tmp_path / "model.pt2", "torch", inputs)
    assert_equal_answers(digits_detector, inputs, answers)


@pytest.mark.no_cover  # tracing torch's exporter takes longer than the export
@pytest.mark.parametrize(("method", "form"), [("be-snn", "torch"), ("deep-ensemble", "onnx")])
def test_mirror_images_are_exported(method, form, tiny_recipe, stripes, tmp_path):
    settings = f"method={{name: {method}, members: 3, mirror: true}}", "training.augment.flip=true", "training.epochs=1"
    score = "score.name=nearest-neighbour", "score.neighbour=3", "score.layer=trunk", "data.calibration=0.4"
    detector = fit_detector(tiny_recipe(*settings, *score, "backbone.hidden=[4]"), stripes).detector
    noise = np.random.default_rng(0).integers(0, 256, (20, 1, 8, 8), dtype=np.uint8)
    images = np.concatenate([stripes.inputs, noise])
    assert_equal_answers(detector, images, exported_answers(detector, tmp_path / "model", form, images))


@pytest.mark.no_cover
@pytest.mark.parametrize(
    ("method", "form"),
    [
        ("softmax", "torch"),
        ("duq", "torch"),
        ("gaussian", "onnx"),
        ("{name: batch-ensemble, members: 2}", "onnx"),
        ("{name: be-snn, members: 2, length_scale: 3}", "torch"),
    ],
)
def test_other_methods_and_tables_export(method, form, tmp_path):
    settings = f"method={method}", "backbone.hidden=[8]", "score.name=method", "training.epochs=2"
    detector = fitted("two-moons", two_moons(400), *settings)
    points = np.random.default_rng(0).uniform(-3, 3, (64, 2)).astype(np.float32)
    label, _, score, *_ = exported_answers(detector, tmp_path / "model", form, points)
    expected = detector.predict(points)
    np.testing.assert_array_equal(label, expected.indices)
    np.testing.assert_allclose(score, expected.score, rtol=5e-4, atol=1e-4)  # Gaussians enlarge what logarithms round


@pytest.fixture(scope="module")
def moons_detector() -> Detector:
    return fitted("two-moons", two_moons(600), "training.epochs=4", "score.name=class-gaussian")


@pytest.mark.parametrize(
    ("promises", "fdr"), [({"per_class": True, "max_error": 0.3}, None), ({"label_sets": "adaptive"}, 0.1)]
)
def test_every_kind_of_decision_is_exported(promises, fdr, moons_detector, tmp_path):
    moons, other = two_moons(600), two_moons(600, seed=1)
    detector = copy.copy(moons_detector).calibrate(other.inputs, labels=other.labels, **promises)
    points = np.concatenate([moons.inputs[:200], np.random.default_rng(0).uniform(-4, 4, (100, 2)).astype(np.float32)])
    export(detector, tmp_path / "model.onnx", fdr=fdr)
    session = ort.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
    _, _, _, p_value, is_ood, decision, label_set = session.run(None, {"inputs": points})
    expected = detector.predict(points)
    expected = expected if fdr is None else expected.control_fdr(fdr)
    same = np.isclose(p_value, expected.p_value, rtol=1e-6)  # a score may round across a calibration score
    assert same.mean() > 0.98
    np.testing.assert_array_equal(is_ood[same], expected.is_ood[same])
    np.testing.assert_array_equal(np.array(DECISIONS)[decision][same], expected.decision[same])
    np.testing.assert_array_equal(label_set[same], expected.label_sets[same])
    assert len(set(decision)) == 3


def test_the_graph_runs_without_besnn_and_torch(moons_detector, tmp_path):
    export(moons_detector, tmp_path / "model.onnx")
    example = Path(__file__).parents[1] / "examples" / "onnx_runtime.py"
    done = subprocess.run(
        [sys.executable, str(example), "model.onnx"], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=120
    )
    assert "unknown" in done.stdout
    assert not {"besnn", "torch"} & set(done.stdout.split("modules:")[1].split())


def test_wrong_use_is_explained(moons_detector, tmp_path):
    bare = copy.copy(moons_detector)
    bare.decision = None
    with pytest.raises(NotReadyError, match="calibrate"):
        export_program(bare)
    with pytest.raises(InputError, match="use onnx or torch"):
        export(moons_detector, tmp_path / "x", form="tflite")
    assert list(tmp_path.iterdir()) == []


LABELS = torch.arange(200) % 4


def features(n: int, seed: int, spread: float) -> torch.Tensor:
    """Two members' features on a short arc, `spread` long, far from the origin."""
    angle = spread * torch.rand(2, n, 1, generator=torch.Generator().manual_seed(seed))
    return 10 * torch.cat([angle.cos(), angle.sin(), angle.square(), torch.ones_like(angle)], dim=-1)


BLOCKS = {
    "nearest-neighbour at trunk.3": lambda: LayerDensity(NearestNeighbourDensity(k=3), 0, 2),
    "class-gaussian at trunk.3+trunk": lambda: LayerDensity(ClassGaussianDensity(), 1, 2),
    "nearest-neighbour at trunk": lambda: LayerDensity(NearestNeighbourDensity(k=2), 1, 3),
}


@pytest.mark.parametrize("name", ["predictive-entropy", *BLOCKS, "combined"])
def test_scores_of_layers_apart(name: str) -> None:
    torch.manual_seed(0)
    densities = {name: make().fit(features(200, 0, 1.0), LABELS) for name, make in BLOCKS.items()}
    parts = ScoreSet("logits", "predictive-entropy", densities)
    evidence, held_out = torch.randn(2, 80, 4), features(80, 1, 1.2)
    combined = CombinedScore({each: parts.score(evidence, held_out, each) for each in ("predictive-entropy", *BLOCKS)})
    scoring = ScoreSet("logits", "predictive-entropy", densities, combined).keep(name)
    evidence, batch = torch.randn(2, 50, 4), features(50, 2, 1.5)
    expected = scoring.score(evidence, batch)
    torch.testing.assert_close(_ScoreNetwork(scoring)(evidence, batch), expected.float(), rtol=1e-3, atol=1e-4)
    assert len(expected.unique()) > 40
