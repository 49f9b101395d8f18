import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from besnn.detection import DriftMonitor
from besnn.errors import DataError
from besnn.serve import drift as drift_store
from besnn.serve.drift import DriftStore

INCREMENT = """
import sqlite3, sys, json
connection = sqlite3.connect(sys.argv[1], timeout=30, isolation_level=None)
for _ in range(20):
    connection.execute("BEGIN IMMEDIATE")
    document = json.loads(connection.execute("SELECT document FROM drift").fetchone()[0])
    document["count"] += 1
    connection.execute("UPDATE drift SET document = ?", (json.dumps(document),))
    connection.execute("COMMIT")
"""


def test_processes_change_it_in_turn(tmp_path: Path):
    path = tmp_path / "drift.sqlite"
    store = DriftStore(path)
    with store.document() as document:
        document["count"] = 0
    others = [subprocess.Popen([sys.executable, "-c", INCREMENT, str(path)]) for _ in range(2)]
    for _ in range(20):
        with store.document() as document:
            document["count"] += 1
    assert [other.wait(60) for other in others] == [0, 0]
    with store.document() as document:
        assert document["count"] == 60
    store.close()


def test_a_change_that_fails_is_no_change(tmp_path: Path):
    store = DriftStore(tmp_path / "drift.sqlite")
    with store.document() as document:
        document["a"] = 1
    with pytest.raises(ZeroDivisionError), store.document() as document:
        document["a"] = 1 / 0
    with pytest.raises(TypeError), store.document() as document:
        document["a"] = {1, 2}  # not JSON
    with store.document() as document:
        assert document == {"a": 1}
    store.close()


@pytest.mark.parametrize("content", [b"not a database at all, but long enough to tell" * 50])
def test_another_file_is_refused_and_left_alone(tmp_path: Path, content: bytes):
    path = tmp_path / "notes.txt"
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"notes\.txt cannot be used"):
        DriftStore(path)
    assert path.read_bytes() == content


def test_a_store_that_another_process_holds_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(drift_store, "PATIENCE", 0.01)
    path = tmp_path / "drift.sqlite"
    store = DriftStore(path)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    held = r"drift\.sqlite cannot be read or written \(database is locked\): let other processes finish"
    with pytest.raises(DataError, match=held), store.document():
        pytest.fail("the document was let out")
    other.execute("ROLLBACK")
    other.execute("BEGIN")
    other.execute("SELECT * FROM drift").fetchall()  # one who reads keeps others from writing, but not from trying
    with pytest.raises(DataError, match=held), store.document() as document:
        document["a"] = 1
    other.close()
    with store.document() as document:
        assert document == {}
    store.close()


@pytest.mark.parametrize("text", ["{", "", "[]", "null", "[" * 100_000, 7, b"\xff"])
def test_a_document_that_is_damaged_is_named(tmp_path: Path, text: object):
    path = tmp_path / "drift.sqlite"
    store = DriftStore(path)
    with sqlite3.connect(path) as other:
        other.execute("INSERT INTO drift VALUES (1, ?)", (text,))
    other.close()
    with pytest.raises(DataError, match=r"drift\.sqlite is damaged \(.*\): start a new one in another file$"), store.document():
        pytest.fail("the document was let out")
    store.close()


def test_a_folder_that_is_not_there_is_named(tmp_path: Path):
    with pytest.raises(DataError, match="nowhere"):
        DriftStore(tmp_path / "nowhere" / "drift.sqlite")


def test_a_damaged_state_is_named(tmp_path: Path):
    monitor = DriftMonitor([0.5], ood_threshold=0.9)
    state = monitor.state_dict() | {"counts": "many"}
    store = DriftStore(tmp_path / "drift.sqlite")
    with pytest.raises(DataError, match=r"drift\.sqlite is damaged"):
        store.restore(monitor, {"monitor": state})
    with pytest.raises(DataError, match="lacks"):
        store.restore(monitor, {"monitor": {}})
    store.close()
