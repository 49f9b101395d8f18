"""Detector.explain: true neighbours, surprises that add up, the members' own labels, and heat that lowers the score."""

import numpy as np
import pytest
import torch

from besnn import Detector
from besnn.data import digits, keep_classes
from besnn.evaluation.explained import card, differing_columns, write_explanations
from besnn.training import load_recipe
from besnn.training.fit import fit_detector

KNOWN = [str(digit) for digit in range(8)]


@pytest.fixture(scope="module")
def data():
    return digits()


@pytest.fixture(scope="module")
def detector(data):
    settings = "training.epochs=4", "method.members=2", "score.name=combined", "score.layer=trunk", "data.examples=300"
    return fit_detector(load_recipe("digits", settings), keep_classes(data, KNOWN)).detector


@pytest.fixture(scope="module")
def strange(data):
    return keep_classes(data, {"8", "9"}).inputs[:12]


def test_neighbours_are_training_examples_like_the_input(detector, data):
    assert len(detector.examples) == 300
    shown = detector.explain(detector.examples.inputs[:20], heat_map=False)
    assert shown.neighbours[:, 0].tolist() == list(range(20))
    assert shown.distances[:, 0].max() < 2e-3
    assert (np.diff(shown.distances, axis=1) >= 0).all()
    assert shown.heat_maps is None


@pytest.mark.parametrize(("layer", "told_by"), [("pixels+output", "pixels+output"), ("pixels", "pixels")])
def test_pixels_that_only_count_far_away_do_not_choose_neighbours(layer, told_by, tiny_recipe, stripes):
    settings = "training.epochs=1", "score.name=combined", f"score.layer={layer}", "score.far=pixels" if "+" in layer else ""
    detector = fit_detector(tiny_recipe("data.calibration=0.35", *filter(None, settings)), stripes).detector
    kept = detector.examples
    (_, features), *_ = detector.outputs(kept.inputs, told_by)
    assert kept.codes.shape == features.shape
    unit = torch.nn.functional.normalize(features, dim=-1)
    nearest = (unit @ unit.mT).mean(dim=0).topk(2).indices
    assert (detector.explain(kept.inputs, 2, heat_map=False).neighbours == nearest.numpy()).mean() > 0.9  # stored in 8 bits


def test_surprises_add_up_to_the_score_and_members_are_the_predictions(detector, strange):
    shown = detector.explain(strange, neighbours=3, heat_map=False)
    assert shown.neighbours.shape == (12, 3)
    assert set(shown.surprise) == set(detector.scoring.combined.tails)
    np.testing.assert_allclose(sum(shown.surprise.values()), shown.predictions.score, rtol=1e-4)
    np.testing.assert_array_equal(shown.predictions.member_labels, detector.predict(strange).member_labels)


def test_one_score_has_one_surprise(tiny_recipe, moons):
    detector = fit_detector(tiny_recipe("score.name=method"), moons).detector
    shown = detector.explain(moons.inputs[:5])
    np.testing.assert_allclose(shown.surprise[detector.scoring.name], -np.log(shown.predictions.p_value), rtol=1e-5)
    assert shown.heat_maps is None  # rows have none
    assert len(detector.explain(moons.inputs[:0])) == 0
    assert detector.explain(np.array([[1e300, 0.0]])).predictions.decision == "unknown"  # float32 cannot hold it


def test_occluding_the_hot_region_lowers_the_score_more_than_a_random_one(detector, strange):
    heat = detector.explain(strange).heat_maps
    rng, falls = np.random.default_rng(0), {"hot": [], "random": []}
    before = detector.score(strange)
    for image, heat_map, score in zip(strange, heat, before, strict=True):
        y, x = np.unravel_index(heat_map.argmax(), heat_map.shape)
        places = {"hot": (min(max(y - 1, 0), 5), min(max(x - 1, 0), 5)), "random": tuple(rng.integers(0, 6, 2))}
        for kind, (top, left) in places.items():
            occluded = image.copy()
            occluded[:, top : top + 3, left : left + 3] = image.mean().astype(np.uint8)
            falls[kind].append(score - detector.score(occluded[None])[0])
    assert np.mean(falls["hot"]) > np.mean(falls["random"])


def test_examples_are_kept_in_the_file_or_not_at_all(detector, strange, tmp_path, tiny_recipe, moons):
    detector.save(tmp_path / "model.safetensors")
    again = Detector.load(tmp_path / "model.safetensors")
    one, other = (each.explain(strange, heat_map=False).neighbours for each in (again, detector))
    np.testing.assert_array_equal(one, other)
    bare = fit_detector(tiny_recipe("data.examples=0"), moons).detector
    assert bare.examples is None
    assert not any(name.startswith("examples/") for name in bare._to_parts()[0])
    assert bare.explain(moons.inputs[:3]).neighbours.shape == (0, 5)
    assert bare.explained(moons.inputs[:3], ["a", "b", "c"])[1].classes == []


def test_large_images_are_kept_as_thumbnails():
    from besnn.training.examples import thumbnails

    image = torch.zeros(2, 3, 200, 100, dtype=torch.uint8)
    image[:, :, :100] = 200
    small = thumbnails(image)
    assert small.shape == (2, 3, 64, 32)
    assert small[0, 0, 10, 5] == 200
    assert small[0, 0, 60, 5] == 0


def test_cards_of_images(detector, strange, tmp_path):
    explained = detector.explained(strange[:2], ["a.png", "b.png"])
    shown = card(explained[0])
    assert shown["picture"].startswith("data:image/svg+xml")
    assert [each["nats"] for each in shown["surprise"]] == sorted((each["nats"] for each in shown["surprise"]), reverse=True)
    write_explanations(explained, tmp_path / "why.html", "Why <b>", more=7)
    page = (tmp_path / "why.html").read_text()
    assert "a.png" in page
    assert "Why &lt;b&gt;" in page
    assert "7 more are not shown" in page


def test_cards_of_rows_name_the_columns_that_differ_most(tiny_recipe, moons):
    detector = fit_detector(tiny_recipe(), moons).detector
    nearest = detector.examples.inputs[0]
    (explained,) = detector.explained(nearest[None] + np.array([[0, 50]], np.float32), ["row 0"])
    (most, _) = differing_columns(explained)
    assert most["column"] == "x2"
    std = float(detector.preprocessing.std[1])
    assert most["deviations"] == pytest.approx(abs(most["value"] - most["nearest"]) / std)
    assert card(explained)["picture"] == ""
