import gzip
import hashlib
import io
import struct
import tarfile
from dataclasses import replace

import numpy as np
import pytest

from besnn.data import fetch, load, verify
from besnn.data.catalogue import DatasetInfo, OfficialFile
from besnn.data.download import download, fetch_files
from besnn.data.official import Status, read_official
from besnn.errors import DataError

CONTENT = bytes(range(256)) * 2000


@pytest.fixture
def part(tmp_path):
    return tmp_path / "new" / "file.part"


def get(server, part, name="file"):
    download(f"{server.url}/{name}", part, progress=False, pause=0)


@pytest.mark.parametrize("earlier", [0, 12345, len(CONTENT)], ids=["nothing", "a part", "everything"])
def test_a_file_arrives_whole_after_an_earlier_run(file_server, part, earlier):
    file_server.files["file"] = CONTENT
    part.parent.mkdir()
    part.write_bytes(CONTENT[:earlier])
    get(file_server, part)
    assert part.read_bytes() == CONTENT
    assert file_server.requested == [f"bytes={earlier}-" if earlier else None]


def test_a_broken_connection_is_resumed(file_server, part):
    file_server.files["file"] = CONTENT
    file_server.break_after = [100_000, 200_000, 1]
    get(file_server, part)
    assert part.read_bytes() == CONTENT
    offsets = [int(header.removeprefix("bytes=").rstrip("-")) for header in file_server.requested[1:]]
    assert offsets == sorted(offsets)
    assert 0 < offsets[0] <= 100_000
    assert len(offsets) == 3


def test_a_server_without_ranges_sends_the_whole_again(file_server, part):
    file_server.files["file"] = CONTENT
    file_server.ranges = False
    file_server.break_after = [100_000]
    get(file_server, part)
    assert part.read_bytes() == CONTENT
    assert len(file_server.requested) == 2


def test_a_missing_address_is_requested_once(file_server, part, one_line):
    with pytest.raises(DataError) as caught:
        get(file_server, part, "absent")
    one_line(caught, f"{file_server.url}/absent", "404")
    assert len(file_server.requested) == 1


def test_giving_up_keeps_what_has_arrived(file_server, part, one_line):
    file_server.files["file"] = CONTENT
    file_server.break_after = [100_000, 0, 0, 0]
    with pytest.raises(DataError) as caught:
        get(file_server, part)
    kept = part.read_bytes()
    assert 0 < len(kept) <= 100_000
    one_line(caught, f"{len(kept):,} bytes are kept in {part}")
    get(file_server, part)
    assert part.read_bytes() == CONTENT


def test_progress_is_drawn(file_server, part, capsys):
    file_server.files["file"] = CONTENT
    download(f"{file_server.url}/file", part, progress=True)
    assert "100%" in capsys.readouterr().err


LABELS = struct.pack(">BBBBI", 0, 0, 8, 1, 9) + bytes(range(9))
BATCHES = [np.random.default_rng(seed).integers(0, 9, 3 * 3073, dtype=np.uint8).tobytes() for seed in (0, 1)]


def sha256(content):
    return hashlib.sha256(content).hexdigest()


def idx_set(*urls):
    file = OfficialFile("SET/raw/labels", sha256(LABELS), 9, urls)
    return DatasetInfo("set", "made up", "none", ("a",), {"test": 9}, {"test": (file,)}, format="idx")


def tar(*members):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, content in members:
            member = tarfile.TarInfo(name)
            if content is None:
                member.type, member.linkname = tarfile.SYMTYPE, "/etc/hostname"
            else:
                member.size = len(content)
            archive.addfile(member, io.BytesIO(content or b""))
    return buffer.getvalue()


def cifar_set(url, archive):
    files = tuple(
        OfficialFile(f"bin/{place}.bin", sha256(batch), 3, (url,), sha256(archive)) for place, batch in enumerate(BATCHES)
    )
    return DatasetInfo("set", "made up", "none", ("a",), {"train": 6}, {"train": files}, format="cifar")


def fetch_all(info, root):
    (files,) = info.files.values()
    fetch_files(info, files, root, progress=False)
    return [read_official(info, file, root).status for file in files]


def names_in(root):
    return sorted(path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file())


def test_a_gzipped_file_is_put_in_place(file_server, tmp_path):
    file_server.files["labels.gz"] = gzip.compress(LABELS)
    info = idx_set(f"{file_server.url}/labels.gz")
    assert fetch_all(info, tmp_path) == [Status.OK]
    assert names_in(tmp_path) == ["SET/raw/labels.gz"]
    assert fetch_all(info, tmp_path) == [Status.OK]
    assert len(file_server.requested) == 1  # what is there is not fetched again


def test_an_altered_copy_is_replaced(file_server, tmp_path):
    file_server.files["labels.gz"] = gzip.compress(LABELS)
    (tmp_path / "SET" / "raw").mkdir(parents=True)
    (tmp_path / "SET" / "raw" / "labels").write_bytes(LABELS[:-1] + b"\7")
    assert fetch_all(idx_set(f"{file_server.url}/labels.gz"), tmp_path) == [Status.OK]
    assert names_in(tmp_path) == ["SET/raw/labels.gz"]


@pytest.mark.parametrize(
    "content",
    [gzip.compress(LABELS[:-1] + b"\7"), b"\x1f\x8bnot gzip", b"<html>Sorry</html>", b""],
    ids=["another label", "not gzip", "a page", "nothing"],
)
def test_wrong_content_is_never_put_in_place(file_server, tmp_path, content, one_line):
    file_server.files["labels.gz"] = content
    with pytest.raises(DataError) as caught:
        fetch_all(idx_set(f"{file_server.url}/labels.gz"), tmp_path)
    one_line(caught, "labels.gz")
    assert names_in(tmp_path) == []


def test_the_second_address_is_tried_when_the_first_fails(file_server, tmp_path):
    file_server.files["mirror/labels.gz"] = gzip.compress(LABELS)
    info = idx_set(f"{file_server.url}/gone/labels.gz", f"{file_server.url}/mirror/labels.gz")
    assert fetch_all(info, tmp_path) == [Status.OK]
    requested = len(file_server.requested)
    both = idx_set(f"{file_server.url}/mirror/labels.gz", f"{file_server.url}/gone/labels.gz")
    assert fetch_all(both, tmp_path / "again") == [Status.OK]
    assert len(file_server.requested) == requested + 1
    with pytest.raises(DataError, match="cannot download"):
        fetch_all(idx_set(f"{file_server.url}/gone/labels.gz", f"{file_server.url}/lost/labels.gz"), tmp_path / "other")


def test_an_archive_is_checked_unpacked_and_removed(file_server, tmp_path, monkeypatch):
    archive = tar(("bin/readme.html", b"hello"), ("bin/1.bin", BATCHES[1]), ("../evil", b"evil"), ("bin/0.bin", BATCHES[0]))
    file_server.files["set.tar.gz"] = archive
    file_server.break_after = [len(archive) // 2]
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    assert fetch_all(cifar_set(f"{file_server.url}/set.tar.gz", archive), tmp_path / "root") == [Status.OK] * 2
    assert names_in(tmp_path) == ["root/bin/0.bin", "root/bin/1.bin"]  # nothing beside, nothing above
    assert len(file_server.requested) == 2


def test_an_altered_archive_is_not_opened(file_server, tmp_path, one_line):
    archive = tar(("bin/0.bin", BATCHES[0]), ("bin/1.bin", BATCHES[1]))
    file_server.files["set.tar.gz"] = archive[:-1] + b"\7"
    with pytest.raises(DataError) as caught:
        fetch_all(cifar_set(f"{file_server.url}/set.tar.gz", archive), tmp_path)
    one_line(caught, "has SHA-256", sha256(archive))
    assert names_in(tmp_path) == []


def test_a_link_in_the_archive_is_not_followed(file_server, tmp_path, one_line):
    archive = tar(("bin/0.bin", None), ("bin/1.bin", BATCHES[1]))
    file_server.files["set.tar.gz"] = archive
    with pytest.raises(DataError) as caught:
        fetch_all(cifar_set(f"{file_server.url}/set.tar.gz", archive), tmp_path)
    one_line(caught, "no plain file bin/0.bin")
    assert not (tmp_path / "bin" / "0.bin").exists()


@pytest.fixture
def served_set(file_server, monkeypatch):
    """A built-in set whose official address is the local server."""
    archive = tar(("bin/0.bin", BATCHES[0]), ("bin/1.bin", BATCHES[1]))
    file_server.files["set.tar.gz"] = archive
    info = replace(cifar_set(f"{file_server.url}/set.tar.gz", archive), class_names=tuple("0123456789"))
    monkeypatch.setattr("besnn.data.catalogue._CATALOGUE", (info,))
    return info


def test_fetch_returns_the_status_afterwards(served_set, tmp_path):
    assert {each.status for each in verify("set", tmp_path)} == {Status.MISSING}
    assert [each.path.name for each in fetch("set", tmp_path, progress=False)] == ["0.bin", "1.bin"]
    assert {each.status for each in verify("set", tmp_path)} == {Status.OK}


def test_loading_downloads_missing_files_once(served_set, file_server, tmp_path):
    for _ in range(2):
        loaded = load("set", data_dir=tmp_path)
        assert loaded.name == "set:train"
        assert loaded.labels.tolist() == [batch[start] for batch in BATCHES for start in range(0, len(batch), 3073)]
    assert len(file_server.requested) == 1


def test_a_set_that_is_not_published_says_where_its_file_belongs(tmp_path):
    with pytest.raises(DataError, match=r"cifar100-sample cannot be downloaded: put its file at .*sample5000\.npz"):
        fetch("cifar100-sample", tmp_path, progress=False)
