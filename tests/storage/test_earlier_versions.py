"""Model files that earlier versions wrote decide as they did: besnn 1.x reads every file of 1.0.0 and later."""

import json
from pathlib import Path

import numpy as np
import pytest

from besnn import Detector

RECORDED = sorted((Path(__file__).parent / "models").rglob("*.json"))


def test_two_files_of_the_first_version_are_there():
    assert [f"{file.parent.name}/{file.stem}" for file in RECORDED][:2] == ["1.0.0/table", "1.0.0/wrapped"]


@pytest.mark.parametrize("file", RECORDED, ids=lambda file: f"{file.parent.name}/{file.stem}")
def test_model_files_of_earlier_versions_decide_as_they_did(file):
    recorded = json.loads(file.read_text())
    detector = Detector.load(file.with_suffix(".safetensors"))
    found = detector.predict(np.asarray(recorded["inputs"], np.float32))
    assert detector.provenance["versions"]["besnn"] == file.parent.name
    assert found.labels.tolist() == recorded["labels"]
    assert found.is_ood.tolist() == recorded["is_ood"]
    assert np.allclose(found.score, recorded["scores"], rtol=1e-3)
    assert np.allclose(found.p_value, recorded["p_values"], atol=1e-4)
