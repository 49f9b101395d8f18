import datetime
import json
import re
import subprocess
import sys
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


def test_the_commit_is_the_checkouts():
    folder = Path(module.__file__).parent
    head = subprocess.run(["git", "-C", folder, "rev-parse", "HEAD"], capture_output=True, text=True)
    if head.returncode:
        assert source_commit() is None
    else:
        assert re.fullmatch(head.stdout.strip() + r"\+?", source_commit())


def test_a_package_that_merely_lies_in_somebodys_repository_has_no_commit(tmp_path):
    subprocess.run(["git", "init", "--quiet", tmp_path], check=True)
    copy = tmp_path / "copied.py"
    copy.write_text(Path(module.__file__).read_text())
    code = "import copied; print(copied.source_commit(), copied._version('no-such-package'))"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["None", "None"]


def test_hardware_in_words():
    assert hardware(torch.device("cpu")).startswith("cpu")
