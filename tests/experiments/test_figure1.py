"""Figure 1: what confidence is, the rings, the picture."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.spatial.distance import cdist

from besnn.data import load
from besnn.errors import DataError
from besnn.training.device import make_fabric
from besnn.training.fit import Fitted, fit_detector
from besnn.training.record import read_record
from experiments.figure1 import PANELS, PLANE, RING_EDGES, draw_figure1, figure1_runs, measure_confidence
from experiments.runner import run_all
from experiments.runs import Run, Workspace

TINY = ("training.epochs=2", "data.limit=200")


@pytest.fixture(scope="module")
def runs() -> list[Run]:
    return figure1_runs([0], TINY)


@pytest.fixture(scope="module")
def done(runs: list[Run], tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    workspace = Workspace(tmp_path_factory.mktemp("figure1"), accelerator="cpu")
    run_all(runs, measure_confidence, workspace, say=lambda line: None)
    return workspace


def fitted(run: Run) -> Fitted:
    return fit_detector(run.recipe, load("two-moons"), fabric=make_fabric("fp32", "cpu"))


def test_no_point_of_the_plane_is_beyond_the_rings() -> None:
    assert cdist(PLANE.points, load("two-moons").inputs).min(axis=1).max() < RING_EDGES[-1]


@pytest.mark.parametrize("panel", range(len(PANELS)))
def test_confidence_is_as_the_paper_defines_it(panel: int, runs: list[Run], done: Workspace) -> None:
    detector = fitted(runs[panel]).detector
    model, x = detector.model, detector.preprocessing(torch.from_numpy(PLANE.points).float())
    with torch.no_grad():
        evidence = model(x)  # [members, points, classes]
    if model.method == "deep-ensemble":
        expected = evidence.softmax(dim=-1).mean(dim=0).amax(dim=-1)
    elif model.members == 1:
        expected = torch.exp(-evidence[0].amin(dim=-1))
    else:
        expected = torch.exp(-evidence).mean(dim=0).amax(dim=-1)
    with np.load(done.record(runs[panel]).with_suffix(".npz")) as arrays:
        np.testing.assert_allclose(arrays["confidence"], expected, atol=1e-3)  # float16


def test_rings_and_share_say_what_the_map_shows(runs: list[Run], done: Workspace) -> None:
    run = runs[1]
    fields = read_record(done.record(run))
    with np.load(done.record(run).with_suffix(".npz")) as arrays:
        confidence = arrays["confidence"].astype(float)
    distance = cdist(PLANE.points, np.asarray(fitted(run).split.training.inputs)).min(axis=1)  # type: ignore[union-attr]
    for ring in fields["rings"]:
        inside = confidence[(distance >= ring["inner"]) & (distance < ring["outer"])]
        assert ring["n"] == len(inside)
        assert ring["mean_confidence"] == pytest.approx(inside.mean(), abs=1e-3)
    assert sum(ring["n"] for ring in fields["rings"]) == len(confidence)
    assert fields["share_confident"] == pytest.approx(np.mean(confidence > 0.5), abs=2e-3)
    assert (fields["in"], fields["method"], fields["recipe"]["data"]["limit"]) == ("two-moons", "duq", 200)


def test_the_picture_shows_four_panels(runs: list[Run], done: Workspace, tmp_path: Path) -> None:
    path = draw_figure1(runs, done, tmp_path / "new" / "figure1.png")
    with Image.open(path) as picture:
        width, height = picture.size
    assert width > 3 * height


def test_a_missing_map_names_the_remedy(runs: list[Run], tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"remove two-moons-deep-ensemble-n4-seed0\.json to run it again"):
        draw_figure1(runs, Workspace(tmp_path), tmp_path / "figure1.png")
