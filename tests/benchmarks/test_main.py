"""`python -m benchmarks`: what it prints, writes and refuses; and that its page is what its records say."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks import neighbours
from benchmarks.__main__ import run
from experiments.records import parse_record

ROWS = ["--quick", "--device", "cpu", "--rows", "one-image,files"]


@pytest.fixture
def besnn(capsys):
    """Runs the command in this process."""

    def call(*arguments):
        code = run([str(argument) for argument in arguments])
        return SimpleNamespace(code=code, **capsys.readouterr()._asdict())

    return call


def test_prints_tables_and_writes_json(besnn, tmp_path):
    outcome = besnn(*ROWS, "--json", tmp_path / "bench.json")
    assert outcome.code == 0
    assert "| score one image | BE-SNN | 4 | besnn |" in outcome.out
    assert "| model file | bytes with N = 4 over N = 1 |" in outcome.out
    record = json.loads((tmp_path / "bench.json").read_text())
    assert parse_record(record).setting.experiment == "bench"
    assert [figure["work"] for figure in record["figures"]] == ["score one image"] * 3


def test_json_on_standard_output_is_all_that_stands_there(besnn):
    outcome = besnn(*ROWS, "--json", "-")
    assert outcome.code == 0
    assert json.loads(outcome.out)["checks"][0]["passed"]


def test_a_wrong_answer_is_an_error(besnn, monkeypatch):
    score = neighbours.NearestNeighbourDensity.score
    monkeypatch.setattr(neighbours.NearestNeighbourDensity, "score", lambda self, features: score(self, features) + 1e-3)
    outcome = besnn("--quick", "--device", "cpu", "--rows", "neighbours", "-q")
    assert outcome.code == 1
    assert "differs from all distances in float64 by 0.001, allowed 1e-05" in outcome.err


def test_wrong_use(besnn):
    outcome = besnn("--quick", "--rows", "speed")
    assert outcome.code == 2
    assert "no row is called 'speed'" in outcome.err


def test_tables_go_into_a_document(besnn, tmp_path):
    (tmp_path / "results" / "bench").mkdir(parents=True)
    assert besnn(*ROWS, "-q", "--json", tmp_path / "results" / "bench" / "here.json").code == 0
    page = tmp_path / "speed.md"
    page.write_text("# Speed\n\n<!-- table: all -->\n<!-- end of table -->\n")
    assert besnn("--into", page, "--results", tmp_path / "results").code == 0
    assert "### Targets on cpu" in page.read_text()


def test_the_page_is_made_from_the_records(besnn, tmp_path):
    root = Path(__file__).parents[2]
    committed = (root / "docs" / "speed.md").read_text()
    page = tmp_path / "speed.md"
    page.write_text(committed)
    assert besnn("-q", "--into", page, "--results", root / "results").code == 0
    assert page.read_text() == committed
