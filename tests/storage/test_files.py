import os
import stat
import threading
import time

import pytest

from besnn.storage.files import ABANDONED, atomic_path, remove_partials


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_file_appears_whole_and_alone(tmp_path):
    target = tmp_path / "deep" / "er" / "a.csv"
    with atomic_path(target) as partial:
        partial.write_text("half")
        assert not target.exists()
        assert partial.parent == target.parent  # a rename does not cross file systems
        assert partial.suffix == ".csv"
    assert target.read_text() == "half"
    assert names(target.parent) == ["a.csv"]


def test_a_failed_writer_leaves_the_old_file_and_nothing_else(tmp_path):
    target = tmp_path / "a.txt"
    target.write_text("old")

    def fail():
        with atomic_path(target) as partial:
            partial.write_text("new")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert target.read_text() == "old"
    assert names(tmp_path) == ["a.txt"]


def test_permissions_follow_the_umask(tmp_path):
    before = os.umask(0o027)
    try:
        with atomic_path(tmp_path / "a") as partial:
            partial.write_text("x")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o640


def test_a_file_keeps_its_permissions(tmp_path):
    target = tmp_path / "a"
    target.touch(mode=0o600)
    with atomic_path(target) as partial:
        partial.write_text("x")
    assert stat.S_IMODE(target.stat().st_mode) == 0o600


@pytest.mark.parametrize("dangling", [True, False])
def test_a_link_stays_and_what_it_leads_to_is_written(tmp_path, dangling):
    there = tmp_path / "there" / "a.txt"
    if not dangling:
        there.parent.mkdir()
        there.write_text("old")
    link = tmp_path / "link.txt"
    link.symlink_to(there)
    with atomic_path(link) as partial:
        partial.write_text("new")
    assert link.is_symlink()
    assert there.read_text() == "new"
    assert names(there.parent) == ["a.txt"]
    assert names(tmp_path) == ["link.txt", "there"]


def test_a_pipe_is_written_to_as_it_is(tmp_path):
    pipe, read = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()))
    reader.start()
    with atomic_path(pipe) as path:
        path.write_text("x")
    reader.join(10)
    assert read == ["x"]
    assert pipe.is_fifo()


def test_writers_at_the_same_time_do_not_meet(tmp_path):
    target, texts = tmp_path / "a.txt", [letter * 100_000 for letter in "abcdefgh"]

    def write(text):
        for _ in range(20):
            with atomic_path(target) as partial:
                partial.write_text(text)

    writers = [threading.Thread(target=write, args=(text,)) for text in texts]
    for writer in writers:
        writer.start()
    seen = set()
    while any(writer.is_alive() for writer in writers):
        if target.exists():
            seen.add(target.read_text())
    for writer in writers:
        writer.join()
    assert seen <= set(texts)
    assert names(tmp_path) == ["a.txt"]


def test_abandoned_files_of_the_same_name_go_when_it_is_written_again(tmp_path):
    old, young, other = (tmp_path / f".{name}.partial.txt" for name in ("a[1]-old", "a[1]-young", "b-old"))
    for path in (old, young, other):
        path.write_text("half")
    for path in (old, other):
        os.utime(path, times=(0, time.time() - ABANDONED - 1))
    with atomic_path(tmp_path / "a[1].txt") as partial:
        partial.write_text("whole")
    assert names(tmp_path) == [".a[1]-young.partial.txt", ".b-old.partial.txt", "a[1].txt"]


def test_the_folder_is_synced_after_the_file_has_its_name(tmp_path, monkeypatch):
    synced, sync = [], os.fsync

    def fsync(descriptor):
        synced.append((stat.S_ISDIR(os.fstat(descriptor).st_mode), names(tmp_path)))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    with atomic_path(tmp_path / "a.txt") as partial:
        partial.write_text("whole")
    (is_folder, before), (is_folder_then, after) = synced
    assert (is_folder, is_folder_then) == (False, True)
    assert "a.txt" not in before
    assert after == ["a.txt"]


def test_remove_partials_takes_only_what_atomic_path_makes(tmp_path):
    for name in (".a-xyz.partial.txt", ".a-xyz.partial", "a.partial", ".hidden", "b-x.partial.txt"):
        (tmp_path / name).touch()
    remove_partials(tmp_path)
    assert names(tmp_path) == [".hidden", "a.partial", "b-x.partial.txt"]
