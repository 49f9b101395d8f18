import contextlib
import io
import itertools
import re
from unittest import mock

import pytest

from besnn.cli.app import run
from besnn.demo import SomeEpochs
from besnn.detector import Detector
from besnn.evaluation import binomial_interval
from besnn.training import load_recipe


@pytest.fixture(scope="module")
def demo_run(tmp_path_factory):
    """The folder and the output of a run of the demo, with half the epochs, which is enough for what it shows."""
    folder = tmp_path_factory.mktemp("demo") / "made"
    said = io.StringIO()
    epochs = {"two-moons": 90, "digits": 10}

    def shorter(name, overrides=()):
        return load_recipe(name, [*overrides, f"training.epochs={epochs[name]}"])

    with contextlib.redirect_stdout(said), mock.patch("besnn.demo.load_recipe", shorter):
        assert run(["demo", "--output", str(folder)]) == 0
    return folder, said.getvalue()


@pytest.mark.slow
def test_confidence_is_high_on_the_moons_and_falls_with_distance(demo_run):
    folder, _ = demo_run
    row = re.search(r"confidence</th>(.*?)</tr>", (folder / "report.html").read_text()).group(1)
    confidence = [float(cell) for cell in re.findall(r"<td>([\d.]+)</td>", row)]
    assert confidence[0] > 0.7
    assert confidence[-1] < 0.005
    assert all(near > far for near, far in itertools.pairwise(confidence))
    assert (folder / "two-moons.png").read_bytes()[:4] == b"\x89PNG"


@pytest.mark.slow
def test_unknown_digits_and_scrambled_images_are_flagged_and_known_ones_are_not(demo_run):
    _, said = demo_run
    shares = [float(share) for share in re.findall(r"(\d[\d.]*)\N{NO-BREAK SPACE}%", said)]
    right, false_alarms, unknown, scrambled = shares[-4:]
    assert right > 95
    assert unknown > 85
    assert scrambled > 99
    # α = 5 % and 288 new images: what chance in them and in the threshold explains
    assert false_alarms / 100 < binomial_interval(round(0.05 * 288), 288, level=0.999).high


@pytest.mark.slow
def test_the_demo_leaves_models_a_picture_a_summary_and_a_report(demo_run):
    folder, said = demo_run
    assert sorted(path.name for path in folder.iterdir()) == [
        "digits.safetensors",
        "report.html",
        "summary.txt",
        "two-moons.png",
        "two-moons.safetensors",
    ]
    detector = Detector.load(folder / "digits.safetensors")
    assert detector.class_names == tuple("01234567")
    summary = (folder / "summary.txt").read_text()
    assert str(folder / "report.html") in summary
    assert all(line in said for line in summary.splitlines())
    assert "://" not in re.sub(r"data:image/svg\+xml;base64,[^\"]*", "", (folder / "report.html").read_text())


def test_some_epochs_are_reported():
    said: list[str] = []
    reporter = SomeEpochs(said.append, every=6)
    for epoch in range(1, 13):
        reporter.epoch({"epoch": epoch, "loss": 1.5, "validation_accuracy": 0.875})
    assert said == [f"  epoch {epoch}: loss 1.50, 88 % of held-out data classified correctly" for epoch in (6, 12)]
