import pytest
from hypothesis import given
from hypothesis import strategies as st

from besnn.data.utf8 import Utf8File


@given(st.binary(max_size=60), st.integers(1, 9))
def test_any_bytes_come_out_as_utf8_however_they_are_read(tmp_path_factory, content, size):
    path = tmp_path_factory.getbasetemp() / "bytes"
    path.write_bytes(content)
    with Utf8File(path) as file:
        parts = list(iter(lambda: file.read(size), b""))
    assert all(len(part) <= size for part in parts)
    assert b"".join(parts).decode() == content.decode(errors="backslashreplace")


def test_the_file_is_closed(tmp_path):
    (tmp_path / "text").write_text("hello")
    with Utf8File(tmp_path / "text") as file:
        assert file.readable()
    with pytest.raises(ValueError, match="closed"):
        file.read(1)
