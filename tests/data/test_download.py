import pytest

from besnn.data.download import download
from besnn.errors import DataError

CONTENT = bytes(range(256)) * 2000


@pytest.fixture
def part(tmp_path):
    return tmp_path / "new" / "file.part"


def get(server, part, name="file"):
    download(f"{server.url}/{name}", part, progress=False, pause=0)


def test_a_file_arrives_whole(file_server, part):
    file_server.files["file"] = CONTENT
    get(file_server, part)
    assert part.read_bytes() == CONTENT
    assert file_server.requested == [None]


def test_a_broken_connection_is_resumed(file_server, part):
    file_server.files["file"] = CONTENT
    file_server.break_after = [100_000, 200_000, 1]
    get(file_server, part)
    assert part.read_bytes() == CONTENT
    offsets = [int(header.removeprefix("bytes=").rstrip("-")) for header in file_server.requested[1:]]
    assert offsets == sorted(offsets)
    assert 0 < offsets[0] <= 100_000
    assert len(offsets) == 3


def test_an_earlier_run_is_resumed(file_server, part):
    file_server.files["file"] = CONTENT
    part.parent.mkdir()
    part.write_bytes(CONTENT[:12345])
    get(file_server, part)
    assert part.read_bytes() == CONTENT
    assert file_server.requested == ["bytes=12345-"]


def test_a_server_without_ranges_sends_the_whole_again(file_server, part):
    file_server.files["file"] = CONTENT
    file_server.ranges = False
    file_server.break_after = [100_000]
    get(file_server, part)
    assert part.read_bytes() == CONTENT
    assert len(file_server.requested) == 2


def test_a_complete_part_is_left_as_it_is(file_server, part):
    file_server.files["file"] = CONTENT
    part.parent.mkdir()
    part.write_bytes(CONTENT)
    get(file_server, part)
    assert part.read_bytes() == CONTENT


def test_an_address_that_is_not_there_is_asked_once(file_server, part, one_line):
    with pytest.raises(DataError) as caught:
        get(file_server, part, "absent")
    one_line(caught, f"{file_server.url}/absent", "404")
    assert len(file_server.requested) == 1


def test_giving_up_keeps_what_came(file_server, part, one_line):
    file_server.files["file"] = CONTENT
    file_server.break_after = [100_000, 0, 0, 0]
    with pytest.raises(DataError) as caught:
        get(file_server, part)
    kept = part.read_bytes()
    assert 0 < len(kept) <= 100_000
    one_line(caught, f"{len(kept):,} bytes are kept in {part}")
    get(file_server, part)
    assert part.read_bytes() == CONTENT


def test_a_server_that_is_down(file_server, part, one_line):
    with pytest.raises(DataError) as caught:
        download("http://127.0.0.1:9/file", part, progress=False, pause=0)
    one_line(caught, "cannot download http://127.0.0.1:9/file")


def test_progress_is_drawn(file_server, part, capsys):
    file_server.files["file"] = CONTENT
    download(f"{file_server.url}/file", part, progress=True)
    assert "100%" in capsys.readouterr().err
