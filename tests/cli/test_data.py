import gzip
import json
import struct

import numpy as np
import pytest

from besnn.data import available


def test_list_names_every_set(besnn, tmp_path):
    outcome = besnn("data", "list", "--data-dir", tmp_path)
    assert all(info.name in outcome.out and info.licence in outcome.out for info in available())
    assert f"folder: {tmp_path}" in outcome.out
    facts = json.loads(besnn("data", "list", "--json").out)
    assert [each["name"] for each in facts["sets"]] == [info.name for info in available()]
    assert facts["sets"][0]["splits"] == {"train": 1000, "test": 1000}


def test_generated_sets_need_no_files(besnn, tmp_path):
    for command in ("fetch", "verify"):
        outcome = besnn("data", command, "two-moons", "digits", "--data-dir", tmp_path)
        assert (outcome.code, outcome.err) == (0, "")
        assert outcome.out.count("generated, no files needed") == 2
    assert list(tmp_path.iterdir()) == []


def test_verify_covers_all_sets_and_tolerates_missing_ones(besnn, tmp_path):
    outcome = besnn("data", "verify", "--data-dir", tmp_path, "--json")
    assert outcome.code == 0
    found = json.loads(outcome.out)
    assert {file["status"] for file in found["cifar10"]} == {"missing"}
    assert "mnist: missing (fetch it: besnn data fetch mnist)" in besnn("data", "verify", "--data-dir", tmp_path).out


@pytest.mark.parametrize("names", [[], ["mnist:test"]])
def test_verify_fails_on_altered_files(besnn, tmp_path, names):
    folder = tmp_path / "MNIST" / "raw"
    folder.mkdir(parents=True)
    images = struct.pack(">BBBBIII", 0, 0, 8, 3, 10_000, 2, 2) + bytes(40_000)
    (folder / "t10k-images-idx3-ubyte.gz").write_bytes(gzip.compress(images))
    labels = struct.pack(">BBBBI", 0, 0, 8, 1, 6) + np.arange(6, dtype=np.uint8).tobytes()
    (folder / "t10k-labels-idx1-ubyte").write_bytes(labels)
    outcome = besnn("data", "verify", *names, "--data-dir", tmp_path)
    assert outcome.code == 1
    assert outcome.err.count("\n") == 1
    assert "t10k-images-idx3-ubyte.gz is altered" in outcome.err
    assert f"partial {folder / 't10k-labels-idx1-ubyte'} (6 of 10,000 records)" in outcome.out


@pytest.mark.real_data
def test_verify_of_the_real_files(besnn, real_data_dir):
    outcome = besnn("data", "verify", "mnist:test", "--data-dir", real_data_dir, "--json")
    assert outcome.code == 0
    assert [file["status"] for file in json.loads(outcome.out)["mnist:test"]] == ["ok", "ok"]


@pytest.mark.real_data
def test_fetch_downloads_nothing_that_is_there_already(besnn, real_data_dir):
    outcome = besnn("data", "fetch", "mnist:test", "--data-dir", real_data_dir, "-q")
    assert outcome == (0, "", "")
