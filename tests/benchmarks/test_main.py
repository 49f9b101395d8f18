"""`python -m benchmarks`: what it prints, writes and refuses; and that its pages are what the records say."""

import json
from types import SimpleNamespace

import pytest

from benchmarks import neighbours
from benchmarks.__main__ import run
from benchmarks.pages import page_texts, write_pages

ROWS = ["--quick", "--device", "cpu", "--rows", "one-image,files"]


@pytest.fixture
def benchmarks(capsys):
    """Runs the command in this process."""

    def call(*arguments):
        code = run([str(argument) for argument in arguments])
        return SimpleNamespace(code=code, **capsys.readouterr()._asdict())

    return call


@pytest.mark.parametrize("command", [(), ("speed",)], ids=["default", "named"])
def test_speed_prints_tables_and_writes_its_record(command, benchmarks, tmp_path):
    outcome = benchmarks(*command, *ROWS, "--json", tmp_path / "speed.json")
    assert outcome.code == 0
    assert "| score one image | BE-SNN | 4 | besnn |" in outcome.out
    assert "| model file | bytes with N = 4 over N = 1 |" in outcome.out
    record = json.loads((tmp_path / "speed.json").read_text())
    assert record["experiment"] == "speed"
    assert [figure["work"] for figure in record["figures"]] == ["score one image"] * 3


def test_json_on_standard_output_comes_alone(benchmarks):
    outcome = benchmarks(*ROWS, "--json", "-")
    assert outcome.code == 0
    assert json.loads(outcome.out)["checks"][0]["passed"]


def test_a_wrong_answer_is_an_error(benchmarks, monkeypatch):
    score = neighbours.NearestNeighbourDensity.score
    monkeypatch.setattr(neighbours.NearestNeighbourDensity, "score", lambda self, features: score(self, features) + 1e-3)
    outcome = benchmarks("--quick", "--device", "cpu", "--rows", "neighbours", "-q")
    assert outcome.code == 1
    assert "differs from all distances in float64 by 0.001, allowed 1e-05" in outcome.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--quick", "--rows", "velocity"], "unknown row 'velocity': use some of decision, one-decision"),
        (["onnx", "--only", "mnist"], "unknown detector 'mnist': use some of two-moons"),
        (["--device", "tpu"], "device 'tpu' is unknown: use auto, cpu"),
    ],
)
def test_wrong_use_is_one_line(words, message, benchmarks):
    outcome = benchmarks(*words)
    assert outcome.code == 2
    assert message in outcome.err
    assert outcome.err.count("\n") == 1


def test_help_names_every_command(benchmarks):
    outcome = benchmarks("--help")
    names = (
        "speed",
        "serve-load",
        "serve-fuzz",
        "file-fuzz",
        "soak",
        "drift-delay",
        "onnx",
        "ray",
        "memory",
        "scale",
        "tables",
    )
    assert outcome.code == 0
    assert all(name in outcome.out for name in names)


def test_all_pages_are_made_from_the_records():
    for path, text in page_texts().items():
        assert path.read_text(encoding="utf-8") == text, path


def test_tables_writes_the_pages(benchmarks, monkeypatch, tmp_path):
    texts = {tmp_path / path.name: text for path, text in page_texts().items()}
    monkeypatch.setattr("benchmarks.pages.page_texts", lambda results: texts)
    outcome = benchmarks("tables")
    assert (outcome.code, outcome.err.count("wrote ")) == (0, len(texts))
    assert all(path.read_text(encoding="utf-8") == text for path, text in texts.items())
    assert write_pages() == list(texts)
