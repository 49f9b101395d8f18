import sys
from pathlib import Path

import pytest

from besnn.serve import server

TOKEN = "correct-horse-battery-staple"


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[dict]:
    """What a service would have been started with, had it been started."""
    calls: list[dict] = []

    def note(detector, model, settings, examples, listener, workers):
        calls.append({"settings": settings, "examples": examples, "address": listener.getsockname(), "workers": workers})

    monkeypatch.setattr(server, "run", note)
    return calls


def test_by_default_it_is_for_this_machine_alone(besnn, moons_model: Path, launched):
    outcome = besnn("serve", moons_model, "--port", 0)
    assert outcome.code == 0
    (call,) = launched
    assert call["address"][0] == "127.0.0.1"
    assert f"http://127.0.0.1:{call['address'][1]}" in outcome.err
    assert "localhost" in call["settings"].allowed_hosts
    assert call["settings"].token is None
    assert call["settings"].model_name == "moons"
    assert {example.kind for example in call["examples"]} == {"known", "ambiguous", "unknown"}  # a toy set is at hand


def test_every_option_arrives(besnn, moons_model: Path, launched, tmp_path: Path):
    (tmp_path / "token").write_text(TOKEN)
    outcome = besnn(
        *("serve", moons_model, "--port", 0, "--workers", 3, "--token-file", tmp_path / "token", "--host", "0.0.0.0"),
        *("--drift-state", tmp_path / "drift.sqlite", "--set", "deadline_seconds=3", "--set", "model_name=other", "-q"),
    )
    assert (outcome.code, outcome.err) == (0, "")
    (call,) = launched
    settings = call["settings"]
    assert (call["workers"], settings.token.get_secret_value()) == (3, TOKEN)
    assert (settings.deadline_seconds, settings.model_name) == (3, "other")
    assert settings.drift_state == tmp_path / "drift.sqlite"


def test_examples_come_from_data_that_is_named(besnn, stripes_model: Path, stripe_folder: Path, launched):
    assert besnn("serve", stripes_model, "--port", 0).code == 0
    assert besnn("serve", stripes_model, "--port", 0, "--examples", stripe_folder).code == 0
    without, with_data = (call["examples"] for call in launched)
    assert without == []
    assert {"known", "unknown"} <= {example.kind for example in with_data}


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--host", "0.0.0.0"], "--token-file"),
        (["--token-file", "nowhere"], "nowhere"),
        (["--set", "max_rows=none"], "max_rows"),
        (["--set", "colour=red"], "colour"),
        (["--workers", "0"], "--workers"),
        (["--port", "99999"], "--port"),
        (["--examples", "nowhere"], "nowhere"),
        (["--device", "nonsense"], "nonsense"),
    ],
)
def test_wrong_use_is_one_line_and_code_2(besnn, moons_model: Path, launched, arguments: list[str], named: str):
    outcome = besnn("serve", moons_model, "--port", 0, *arguments)
    assert outcome.code == 2
    assert named in outcome.err
    assert outcome.err.count("\n") == 1
    assert not launched


def test_without_its_extra_it_names_the_extra(besnn, moons_model: Path, monkeypatch):
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    assert besnn("serve", moons_model) == (2, "", "besnn: the service needs the extra `serve`: pip install 'besnn[serve]'\n")
