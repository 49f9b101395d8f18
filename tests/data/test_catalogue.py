import re

import pytest

from besnn.data import available
from besnn.data.catalogue import parse_name, require_name
from besnn.errors import InputError


@pytest.mark.parametrize("info", available(), ids=lambda info: info.name)
def test_every_set_is_fully_described(info):
    assert info.description
    assert info.licence
    assert len(set(info.class_names)) == len(info.class_names) >= 2
    assert set(info.files) in (set(), set(info.sizes))
    for split, files in info.files.items():
        per_file = {"idx": 1, "cifar": len(files), "svhn": 1, "npz": 1}[info.format]
        assert {file.records * per_file for file in files} == {info.sizes[split]}
        for file in files:
            assert re.fullmatch("[0-9a-f]{64}", file.sha256)
            assert all(url.startswith("http") and not url.endswith("/") for url in file.urls)


def test_no_two_files_share_a_path_or_content():
    files = [file for info in available() for group in info.files.values() for file in group]
    assert len({file.path for file in files}) == len({file.sha256 for file in files}) == len(files)


def test_names():
    assert parse_name("mnist")[1] is None
    assert parse_name("svhn:train")[1] == "train"
    assert parse_name("photos/train") is None
    with pytest.raises(InputError, match="not-mnist has no split 'train': use not-mnist:test"):
        parse_name("not-mnist:train")
    with pytest.raises(InputError, match="no split ''"):
        parse_name("mnist:")
    with pytest.raises(InputError, match="choose from two-moons, digits"):
        require_name("imagenet")
