"""Scores and densities that a user registers work everywhere, as docs/extending.md says."""

import re
import runpy
from pathlib import Path

import numpy as np
import pytest
import torch

from besnn.detection import DENSITIES, SCORES
from besnn.detector import Detector
from besnn.export import export

PAGE = Path(__file__).parents[2] / "docs" / "extending.md"


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Detector]:
    """Run the page's code blocks on scores and densities and return their detectors; nothing stays registered."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(SCORES, "distances", dict(SCORES["distances"]))
    monkeypatch.setitem(DENSITIES, "centre-distance", DENSITIES["class-gaussian"])
    detectors = []
    for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL):
        if re.search(r"^(SCORES|DENSITIES)\[", block, re.MULTILINE):
            Path("block.py").write_text(block, encoding="utf-8")
            detectors.append(runpy.run_path("block.py")["detector"])
    return detectors


def test_they_decide_and_are_saved_and_exported(registered: list[Detector]) -> None:
    by_score, by_density = registered
    assert by_score.scoring.name == "distance-ratio"
    assert "centre-distance" in by_density.scoring.densities
    inputs = np.random.default_rng(0).normal(size=(20, 2)).astype(np.float32)
    for detector in registered:
        again = Detector.from_bytes(detector.to_bytes())
        np.testing.assert_array_equal(again.score(inputs), detector.score(inputs))
        export(detector, Path("model.pt2"), "torch")
        found = torch.export.load("model.pt2").module()(torch.from_numpy(inputs))[2]
        np.testing.assert_allclose(found, detector.score(inputs), rtol=1e-4, atol=1e-4)
