import datetime
import json
import re
import runpy
import subprocess
from pathlib import Path

import torch

import besnn
from besnn.training import provenance as module
from besnn.training.provenance import hardware, provenance, source_commit


def test_the_record_is_json_and_names_versions_data_and_time():
    record = provenance({"a.csv": "abc"})
    assert json.loads(json.dumps(record)) == record
    assert record["data"] == {"a.csv": "abc"}
    assert record["versions"]["torch"] == torch.__version__
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


def test_a_copy_without_history_is_told_its_commit(monkeypatch):
    monkeypatch.setenv("BESNN_COMMIT", "abc123")
    assert source_commit.__wrapped__() == "abc123"


def test_a_package_that_merely_lies_in_somebodys_repository_has_no_commit(tmp_path, monkeypatch):
    monkeypatch.delenv("BESNN_COMMIT", raising=False)
    subprocess.run(["git", "init", "--quiet", tmp_path], check=True)
    copy = tmp_path / "copied.py"
    copy.write_text(Path(module.__file__).read_text())
    assert runpy.run_path(str(copy))["source_commit"]() is None


def test_where_there_is_no_git_there_is_no_commit(monkeypatch):
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
