import json
import re

import pytest

from besnn.cli.inspect import facts_of, in_words, measured_in_words
from besnn.detector import Detector
from besnn.storage.tensor_file import MODEL_FILE, read_tensor_file, write_tensor_file
from besnn.version import __version__


@pytest.mark.parametrize("options", [["--json"], ["--json", "-"], ["--json=-"]], ids=" ".join)
def test_facts_as_json(besnn, moons_model, options):
    outcome = besnn("inspect", moons_model, *options)
    assert (outcome.code, outcome.err) == (0, "")
    facts, detector = json.loads(outcome.out), Detector.load(moons_model)
    assert facts["bytes"] == moons_model.stat().st_size
    assert facts["recipe"] == detector.recipe.model_dump(mode="json")
    assert facts["provenance"] == detector.provenance
    assert facts["feature_names"] == ["x1", "x2"]
    assert facts["calibration"]["inputs"] == len(detector.threshold.scores)


def test_in_words(besnn, moons_model, stripes_model, uncalibrated_model):
    words = besnn("inspect", moons_model).out
    assert "be-snn, 2 members" in words
    assert "tables of 2 columns" in words
    assert "2: upper, lower" in words
    assert f"besnn {__version__}" in words
    assert re.search(r"class spread [\d.e-]+ on average, [\d.e-]+ at least; entropy -[\d.]+ nats per dimension \(", words)
    assert re.search(
        r"members      two of them disagree on [\d.]+ % of known inputs and [\d.]+ % of made-up inputs; their", words
    )
    assert "grey images, 8x8" in besnn("inspect", stripes_model).out
    assert "none yet: run besnn calibrate" in besnn("inspect", uncalibrated_model).out


def test_control_characters_in_names_are_escaped(besnn, moons_model, tmp_path):
    tensors, header = read_tensor_file(moons_model, MODEL_FILE)
    header["class_names"] = ["\x1b[2Jupper", "lower\nbesnn: all is well"]
    write_tensor_file(tmp_path / "hostile.safetensors", MODEL_FILE, tensors, header)
    words = besnn("inspect", tmp_path / "hostile.safetensors").out
    assert r"2: \x1b[2Jupper, lower\nbesnn: all is well" in words
    assert words.replace("\n", "").isprintable()


def test_mirror_images_are_mentioned(moons_model):
    facts = facts_of(Detector.load(moons_model))
    assert not facts["mirror"]
    assert "mirror" not in "".join(in_words(facts))
    assert "2 members (every second one sees mirror images), " in in_words(facts | {"mirror": True})[0]


@pytest.mark.parametrize(
    ("score", "layer", "words"),
    [
        ("tempered-entropy", None, "tempered-entropy"),
        ("combined", "trunk.0,trunk", "combined, from features of the network's layers trunk.0, trunk"),
        ("nearest-neighbour at trunk", "trunk.0,trunk", "nearest-neighbour at trunk"),
    ],
)
def test_a_score_is_named_with_the_layer_it_looks_at(score, layer, words, moons_model):
    facts = facts_of(Detector.load(moons_model)) | {"score": score, "layer": layer}
    assert f"score        {words}" in in_words(facts)


def test_class_features_that_are_too_narrow_are_mentioned():
    features = {"spread": 0.1, "least_spread": 0.0, "entropy": -3.0, "data_entropy": -2.0, "covered": 0.25}
    (line,) = measured_in_words({"class_features": features})
    assert line.endswith("entropy -3 nats per dimension (the data: -2), lower for 75 % of members and classes")
    assert measured_in_words({}) == []  # an earlier version's file


def test_what_a_file_does_not_record_is_left_out(besnn, moons_model, tmp_path):
    tensors, header = read_tensor_file(moons_model, MODEL_FILE)
    header["provenance"] = {"date": "2026-11-19"}
    write_tensor_file(tmp_path / "model.safetensors", MODEL_FILE, tensors, header)
    assert besnn("inspect", tmp_path / "model.safetensors").out.splitlines()[-1] == "trained      2026-11-19"
