from hypothesis import given
from hypothesis import strategies as st

from besnn.errors import DataError, one_line


@given(st.text())
def test_one_line_is_one_line_with_every_word(text):
    line = one_line(text)
    assert line.splitlines() in ([], [line])
    assert line.split() == text.split()
    assert one_line(ValueError(text)) == (line or "ValueError")


def test_an_error_without_words_gives_its_name():
    assert one_line(DataError()) == "DataError"
    assert one_line("") == ""
