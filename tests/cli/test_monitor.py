import json
import sys
from pathlib import Path

import pytest

import besnn.serve as besnn_serve


@pytest.fixture
def scores(besnn, moons_model: Path, write_csv, tmp_path: Path) -> Path:
    """100 points of a moon, then 100 from far away, scored."""
    near = [(0.0, 1.0 + 0.001 * place) for place in range(100)]
    far = [(50.0, 50.0 + place) for place in range(100)]
    points = write_csv(tmp_path / "points.csv", ["x1", "x2"], near + far)
    assert besnn("score", moons_model, points, "-o", tmp_path / "scores.parquet", "-q").code == 0
    return tmp_path / "scores.parquet"


def test_the_outcome_in_words(besnn, scores: Path):
    outcome = besnn("monitor", scores)
    assert outcome.code == 0
    first, rate, martingale, alarm = outcome.out.splitlines()
    assert "200 inputs" in first
    assert "of the last 200 inputs (95 % interval" in rate
    assert martingale.startswith("martingale   10^")
    assert alarm.startswith("alarm        at input 1")


def test_the_outcome_as_json_with_the_model_and_a_state(besnn, scores: Path, moons_model: Path, tmp_path: Path):
    arguments = ("monitor", scores, "--model", moons_model, "--state", tmp_path / "state.sqlite", "--window", 100, "--json")
    first, second = (json.loads(besnn(*arguments).out) for _ in range(2))
    assert (first["inputs"], first["steps"], second["steps"]) == (200, 200, 400)
    assert first["ood_rate"] == 1.0
    assert first["ood_rate_interval"][0] < 1.0 == first["ood_rate_interval"][1]
    assert first["alarm"]
    assert first["alarm_step"] == second["alarm_step"]


def test_a_calm_stream_raises_no_alarm(besnn, scores: Path):
    outcome = besnn("monitor", scores, "--alarm-level", 1e300)
    assert "alarm        none: 1e+300 was not reached" in outcome.out
    assert besnn("monitor", scores, "-q").out == ""


@pytest.mark.parametrize(
    ("arguments", "code", "named"),
    [
        (["nowhere.parquet"], 2, "nowhere.parquet"),
        (["{scores}", "--alarm-level", "1"], 2, "alarm_level"),
        (["{scores}", "--window", "0"], 2, "window"),
        (["{scores}", "--state", "x"], 2, "model"),
        (["{points}"], 1, "points.csv"),
    ],
)
def test_wrong_use_is_one_line(besnn, scores: Path, arguments: list[str], code: int, named: str):
    places = {"scores": scores, "points": scores.with_name("points.csv")}
    outcome = besnn("monitor", *(argument.format(**places) for argument in arguments))
    assert outcome.code == code
    assert named in outcome.err
    assert outcome.err.count("\n") == 1


def test_it_needs_no_extra(besnn, scores: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("besnn.serve", besnn_serve)  # as it was, after this test
    for name in [name for name in sys.modules if name.startswith("besnn.serve")]:
        monkeypatch.delitem(sys.modules, name)  # imported again, without the extra
    for name in ("fastapi", "starlette", "uvicorn", "prometheus_client", "python_multipart"):
        monkeypatch.setitem(sys.modules, name, None)
    assert "200 inputs" in besnn("monitor", scores).out
