import datetime
import json
import re
import runpy
import subprocess
from pathlib import Path

import pytest
import torch

import besnn
from besnn.errors import DataError
from besnn.training import build_method, load_recipe, parse_recipe
from besnn.training import record as module
from besnn.training.record import hardware, model_fields, provenance, read_record, source_commit, write_record


def test_a_record_comes_back_as_it_was_written(tmp_path: Path) -> None:
    recipe = load_recipe("two-moons", ["method.members=2", "training.seed=7"])
    model, _ = build_method(recipe, (2,), 2)
    fields = {"variant": "λ2 = 0", **model_fields(model, recipe)}
    path = tmp_path / "new" / "run.json"
    write_record(path, fields)
    assert read_record(path) == json.loads(path.read_text(encoding="utf-8")) == fields
    assert (fields["method"], fields["members"], fields["seed"]) == ("be-snn", 2, 7)
    assert fields["parameters"] == sum(parameter.numel() for parameter in model.parameters())
    assert parse_recipe(fields["recipe"]) == recipe  # type: ignore[arg-type]
    assert [path.name for path in path.parent.iterdir()] == ["run.json"]


def test_numbers_that_json_lacks_are_refused_and_the_old_record_stays(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    write_record(path, {"seconds": 1})
    with pytest.raises(ValueError, match="JSON"):
        write_record(path, {"seconds": float("nan")})
    assert read_record(path) == {"seconds": 1}


@pytest.mark.parametrize("content", ["", "{", "[1]", None])
def test_a_file_that_is_not_a_record_is_reported_in_one_line(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "run.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(DataError, match=r"run\.json is not a record") as caught:
        read_record(path)
    assert "\n" not in str(caught.value)


def test_the_record_is_json_and_names_versions_data_and_time():
    record = provenance({"a.csv": "abc"})
    assert json.loads(json.dumps(record)) == record
    assert record["data"] == {"a.csv": "abc"}
    assert torch.__version__.startswith(record["versions"]["torch"])  # and the build, such as +cu130
    assert record["versions"]["besnn"] == besnn.__version__
    age = datetime.datetime.now(datetime.UTC) - datetime.datetime.fromisoformat(record["date"])
    assert age < datetime.timedelta(minutes=1)


def test_the_commit_is_the_checkouts(monkeypatch):
    monkeypatch.delenv("BESNN_COMMIT", raising=False)
    folder = Path(module.__file__).parent
    head = subprocess.run(["git", "-C", folder, "rev-parse", "HEAD"], capture_output=True, text=True)
    if head.returncode:
        assert source_commit.__wrapped__() is None
    else:
        assert re.fullmatch(head.stdout.strip() + r"\+?", source_commit.__wrapped__())


def test_a_copy_without_history_takes_its_commit_from_the_environment(monkeypatch):
    monkeypatch.setenv("BESNN_COMMIT", "abc123")
    assert source_commit.__wrapped__() == "abc123"


def test_a_package_inside_another_repository_has_no_commit(tmp_path, monkeypatch):
    monkeypatch.delenv("BESNN_COMMIT", raising=False)
    subprocess.run(["git", "init", "--quiet", tmp_path], check=True)
    copy = tmp_path / "copied.py"
    copy.write_text(Path(module.__file__).read_text())
    assert runpy.run_path(str(copy))["source_commit"]() is None


def test_without_git_there_is_no_commit(monkeypatch):
    monkeypatch.delenv("BESNN_COMMIT", raising=False)
    monkeypatch.setenv("PATH", "")
    assert source_commit.__wrapped__() is None


def test_a_package_that_is_not_installed_has_no_version(monkeypatch):
    monkeypatch.setattr(module, "PACKAGES", ("torch", "no-such-package"))
    versions = provenance({})["versions"]
    assert versions["torch"] is not None
    assert versions["no-such-package"] is None


def test_hardware_in_words():
    assert hardware(torch.device("cpu")).startswith("cpu")


@pytest.mark.parametrize(("threads", "words"), [(1, "1 thread"), (2, "2 threads")])
def test_threads_are_counted_in_english(monkeypatch, threads, words):
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    assert hardware(torch.device("cpu")).endswith(f", {words}")
