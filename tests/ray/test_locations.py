import zipfile
from pathlib import Path

import fsspec
import pytest

from besnn.data.folder import list_files
from besnn.errors import DataError, InputError
from besnn.ray.locations import Location

NAMES = ["b.png", "b/2.png", "b/10.png", "a/c/1.png", ".hidden/1.png", "a/.hidden.png", "a.png"]


@pytest.fixture
def tree(tmp_path):
    for name in NAMES:
        path = tmp_path / "tree" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    return tmp_path / "tree"


@pytest.fixture
def archive(tree):
    with zipfile.ZipFile(tree.parent / "tree.zip", "w") as file:
        for name in NAMES:
            file.write(tree / name, f"top/{name}")
    return f"zip://top::file://{tree.parent}/tree.zip"


def test_a_path_means_the_same_in_every_process(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    location = Location.parse("data/x.csv")
    assert (location.name, location.address) == ("data/x.csv", str(tmp_path / "data" / "x.csv"))
    assert location.local == tmp_path / "data" / "x.csv"
    assert Location.parse(f"file://{tmp_path}/x.csv").local == tmp_path / "x.csv"


def test_files_come_in_one_order_wherever_they_lie(tree, archive):
    expected = [(path.relative_to(tree).as_posix(), path.stat().st_size) for path in list_files(tree)]
    assert [name for name, _ in expected] == ["a.png", "b.png", "a/c/1.png", "b/10.png", "b/2.png"]
    assert list(Location.parse(str(tree)).files()) == expected
    assert list(Location.parse(archive).files()) == expected


def test_a_file_is_its_own_only_one(tree, archive):
    for folder in (str(tree), archive):
        assert list((Location.parse(folder) / "a/c/1.png").files()) == [("1.png", 9)]


def test_what_lies_in_an_archive_is_read_in_place_or_from_a_copy(archive):
    file = Location.parse(archive) / "b/2.png"
    assert (file.suffix, file.is_file(), file.is_folder()) == (".png", True, False)
    assert file.read() == b"b/2.png"
    with file.opened() as opened:
        opened.seek(2)
        assert opened.read() == b"2.png"
    with file.as_local_file() as copy:
        assert copy.suffix == ".png"
        assert copy.read_bytes() == b"b/2.png"
    assert not copy.exists()


def test_errors_about_a_copy_name_the_original(archive):
    file = Location.parse(archive) / "a.png"
    with pytest.raises(DataError) as caught, file.as_local_file() as copy:
        raise DataError(f"{copy} is bad")
    assert str(caught.value) == f"{file.name} is bad"


@pytest.mark.parametrize("address", ["scores/part", "memory://scores/part"])
def test_writing_makes_the_folder_and_replaces_what_was_there(address, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    fsspec.filesystem("memory").store.clear()
    file = Location.parse(address)
    for content in (b"one", b"two"):
        file.write(content)
        assert file.read() == content
    folder = Location.parse(address.removesuffix("/part"))
    assert folder.names() == ["part"]
    assert Location.parse(address + "s").names() == []


def test_a_fingerprint_tells_a_changed_file(tmp_path):
    file = Location.parse(str(tmp_path / "x"))
    file.write(b"one")
    before = file.fingerprint()
    assert file.fingerprint() == before
    file.write(b"three")
    assert file.fingerprint() != before


@pytest.mark.parametrize("address", ["nowhere://x", "zip://a::nowhere://b"])
def test_an_address_of_no_known_kind(address):
    with pytest.raises(InputError, match="cannot be used"):
        Location.parse(address)


def test_what_goes_wrong_is_one_line(tmp_path):
    with pytest.raises(DataError, match=r"missing cannot be read .*No such file"):
        Location.parse(str(tmp_path / "missing")).read()
    with pytest.raises(DataError, match="cannot be read") as caught:
        Location.parse(f"zip://x::file://{tmp_path}/missing.zip")
    assert "\n" not in str(caught.value)
    blocked = tmp_path / "file"
    blocked.touch()
    with pytest.raises(DataError, match="cannot be written"):
        (Location.parse(str(blocked)) / "part").write(b"")


def test_a_mistake_in_a_block_stays_what_it_is(tmp_path):
    file = Location.parse(str(tmp_path / "x"))
    file.write(b"")
    with pytest.raises(ZeroDivisionError), file.opened():
        _ = 1 / 0
    assert isinstance(file.local, Path)
