import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from besnn.data.utf8 import BLOCK, valid_utf8


@given(st.binary(max_size=60))
@example("größer\r\n\n".encode())
@example(b"\r\n\xff\r\n\n\r")
@example("größer".encode()[:-5])
@example(b"a" * (BLOCK - 1) + "ö".encode() + b"a" * BLOCK)  # a character in two blocks
@example(b"a" * (BLOCK - 1) + "ö".encode() + b"a" * BLOCK + b"\xff")
def test_any_bytes_come_out_as_utf8(tmp_path_factory, content):
    path = tmp_path_factory.getbasetemp() / "bytes"
    path.write_bytes(content)
    with valid_utf8(path) as valid:
        assert valid.read_bytes() == content.decode(errors="backslashreplace").encode()


@pytest.mark.parametrize("content", ["größer".encode(), b"\xff"])
def test_only_what_is_not_utf8_is_copied_and_the_copy_goes(tmp_path, content):
    path = tmp_path / "text"
    path.write_bytes(content)
    with valid_utf8(path) as valid:
        assert (valid == path) == (content != b"\xff")
    assert valid.exists() == (valid == path)
    assert path.read_bytes() == content
