import gzip
import hashlib
import struct

import numpy as np
import pytest

from besnn.data import Status, data_root, verify
from besnn.data.catalogue import DatasetInfo, OfficialFile
from besnn.data.store import read_official
from besnn.errors import InputError


def idx(values):
    return struct.pack(f">BBBB{values.ndim}I", 0, 0, 8, values.ndim, *values.shape) + values.tobytes()


CONTENT = idx(np.arange(50, dtype=np.uint8))
FILE = OfficialFile("SET/raw/labels", hashlib.sha256(CONTENT).hexdigest(), 50, ("http://127.0.0.1/labels.gz",))
INFO = DatasetInfo("set", "made up", "none", ("a",), {"test": 50}, {"test": (FILE,)}, format="idx")

CASES = {
    "unpacked": ("labels", CONTENT, Status.OK),
    "gzipped": ("labels.gz", gzip.compress(CONTENT), Status.OK),
    "gzipped anew": ("labels.gz", gzip.compress(CONTENT, 1, mtime=7), Status.OK),
    "fewer records": ("labels", idx(np.arange(20, dtype=np.uint8)), Status.PARTIAL),
    "one byte altered": ("labels", CONTENT[:-1] + b"\xff", Status.ALTERED),
    "more records": ("labels", idx(np.arange(51, dtype=np.uint8)), Status.ALTERED),
    "cut short": ("labels", CONTENT[:30], Status.ALTERED),
    "wrong magic": ("labels", b"\1" + CONTENT[1:], Status.ALTERED),
    "gzip cut short": ("labels.gz", gzip.compress(CONTENT)[:-12], Status.ALTERED),
    "gzip altered": ("labels.gz", gzip.compress(CONTENT)[:15] + b"\xff\xff" + gzip.compress(CONTENT)[17:], Status.ALTERED),
    "gzip with another checksum": ("labels.gz", gzip.compress(CONTENT)[:-8] + b"\0" * 8, Status.ALTERED),
    "elsewhere": ("other", CONTENT, Status.MISSING),
}


@pytest.mark.parametrize("case", CASES)
def test_status_of_a_file(tmp_path, case):
    name, content, status = CASES[case]
    (tmp_path / "SET" / "raw").mkdir(parents=True)
    (tmp_path / "SET" / "raw" / name).write_bytes(content)
    found = read_official(INFO, FILE, tmp_path)
    assert found.status.status == status
    assert (found.status.detail == "") == (status is Status.OK)
    assert "\n" not in found.status.detail
    assert (found.records is not None) == (status in (Status.OK, Status.PARTIAL))


def test_partial_says_how_much_there_is(tmp_path):
    (tmp_path / "SET" / "raw").mkdir(parents=True)
    (tmp_path / "SET" / "raw" / "labels").write_bytes(CASES["fewer records"][1])
    assert read_official(INFO, FILE, tmp_path).status.detail == "20 of 50 records"


def test_the_data_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("BESNN_DATA", str(tmp_path / "named"))
    assert data_root(tmp_path) == tmp_path
    assert data_root() == tmp_path / "named"
    monkeypatch.delenv("BESNN_DATA")
    assert data_root().name == "besnn"


def test_verify_takes_a_set_or_a_split(tmp_path):
    assert len(verify("mnist", tmp_path)) == 4
    assert {each.status for each in verify("mnist:test", tmp_path)} == {Status.MISSING}
    assert len(verify("mnist:test", tmp_path)) == 2
    assert "besnn data fetch mnist" in verify("mnist:test", tmp_path)[0].detail
    with pytest.raises(InputError, match="no built-in set is called 'imagenet'"):
        verify("imagenet", tmp_path)


@pytest.mark.real_data
@pytest.mark.parametrize("name", ["mnist", "fashion-mnist", "not-mnist", "cifar10"])
def test_the_real_files_are_the_official_ones(real_set, name):
    assert {each.status for each in verify(name, real_set(name))} == {Status.OK}


@pytest.mark.real_data
def test_the_real_svhn_is_official_or_known_to_be_partial(real_set):
    (found,) = verify("svhn:test", real_set("svhn:test"))
    assert found.status in (Status.OK, Status.PARTIAL)
