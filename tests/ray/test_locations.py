import zipfile

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
    assert (location.name, location.url) == ("data/x.csv", str(tmp_path / "data" / "x.csv"))
    assert location.local == tmp_path / "data" / "x.csv"
    assert Location.parse(f"file://{tmp_path}/x.csv").local == tmp_path / "x.csv"


def test_local_and_remote_folders_are_listed_in_the_same_order(tree, archive):
    expected = [(path.relative_to(tree).as_posix(), path.stat().st_size) for path in list_files(tree)]
    assert [name for name, _ in expected] == ["a.png", "b.png", "a/c/1.png", "b/10.png", "b/2.png"]
    for folder in (Location.parse(str(tree)), Location.parse(archive)):
        assert list(folder.files()) == expected
        assert list((folder / "a/c/1.png").files()) == [("1.png", 9)]


def test_a_file_in_an_archive_is_read_in_place_or_from_a_copy(archive):
    file = Location.parse(archive) / "b/2.png"
    assert (file.suffix, file.is_file(), file.is_folder(), file.local) == (".png", True, False, None)
    assert file.read() == b"b/2.png"
    with file.opened() as opened:
        opened.seek(2)
        assert opened.read() == b"2.png"
    with file.as_local_file() as copy:
        assert copy.suffix == ".png"
        assert copy.read_bytes() == b"b/2.png"
    assert not copy.exists()
    with pytest.raises(DataError) as caught, file.as_local_file() as copy:
        raise DataError(f"{copy} is bad")
    assert str(caught.value) == f"{file.name} is bad"


@pytest.mark.parametrize("name", ["scores/part", "memory://scores/part"])
def test_writing_creates_the_folder_and_replaces_the_file(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    fsspec.filesystem("memory").store.clear()
    file = Location.parse(name)
    fingerprints = set()
    for content in (b"one", b"three"):
        file.write(content)
        assert file.read() == content
        fingerprints.add(file.fingerprint())
    assert len(fingerprints) == 2
    assert file.fingerprint() in fingerprints
    assert Location.parse(name.removesuffix("/part")).names() == ["part"]
    assert Location.parse(f"{name}s").names() == []


@pytest.mark.parametrize("url", ["nowhere://x", "zip://a::nowhere://b"])
def test_an_unknown_protocol(url):
    with pytest.raises(InputError, match="cannot be used"):
        Location.parse(url)


def test_errors_are_one_line(tmp_path):
    with pytest.raises(DataError, match=r"missing cannot be read .*No such file"):
        Location.parse(str(tmp_path / "missing")).read()
    with pytest.raises(DataError, match="cannot be read") as caught:
        Location.parse(f"zip://x::file://{tmp_path}/missing.zip")
    assert "\n" not in str(caught.value)
    (tmp_path / "file").touch()
    file = Location.parse(str(tmp_path / "file"))
    with pytest.raises(DataError, match="cannot be written"):
        (file / "part").write(b"")
    with pytest.raises(ZeroDivisionError), file.opened():  # a mistake in the block stays what it is
        _ = 1 / 0
