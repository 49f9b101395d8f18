import contextlib
import io
import itertools
import re

import pytest

from besnn.cli.app import run
from besnn.demo import EverySixthEpoch
from besnn.detector import Detector
from besnn.evaluation.intervals import binomial_interval


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    """The demo as a user gets it: its folder, and what it said."""
    folder = tmp_path_factory.mktemp("demo") / "made"
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        assert run(["demo", "--output", str(folder)]) == 0
    return folder, said.getvalue()


@pytest.mark.slow
def test_confidence_is_high_on_the_moons_and_falls_with_distance(played):
    folder, _ = played
    row = re.search(r"confidence</th>(.*?)</tr>", (folder / "report.html").read_text()).group(1)
    confidence = [float(cell) for cell in re.findall(r"<td>([\d.]+)</td>", row)]
    assert confidence[0] > 0.7
    assert confidence[-1] < 0.05
    assert all(near > far for near, far in itertools.pairwise(confidence))
    assert (folder / "two-moons.png").read_bytes()[:4] == b"\x89PNG"


@pytest.mark.slow
def test_unknown_digits_and_scrambled_images_are_flagged_and_known_ones_are_not(played):
    _, said = played
    shares = [float(share) for share in re.findall(r"(\d[\d.]*)\N{NO-BREAK SPACE}%", said)]
    right, false_alarms, unknown, scrambled = shares[-4:]
    assert right > 95
    assert unknown > 85
    assert scrambled > 99
    # α = 5 % and 288 new images: what chance in them and in the threshold explains
    assert false_alarms / 100 < binomial_interval(round(0.05 * 288), 288, level=0.999).high


@pytest.mark.slow
def test_models_and_summary_are_left_behind(played):
    folder, said = played
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


def test_progress_is_said_now_and_then():
    said: list[str] = []
    reporter = EverySixthEpoch(said.append)
    for epoch in range(1, 13):
        reporter.epoch({"epoch": epoch, "loss": 1.5, "validation_accuracy": 0.875})
    assert said == [f"  epoch {epoch}: loss 1.50, 88 % of held-out data classified correctly" for epoch in (6, 12)]
