import ast

from hypothesis import given
from hypothesis import strategies as st

from besnn.errors import DataError, one_line, printable


@given(st.text())
def test_one_line_is_one_line_with_every_word(text):
    line = one_line(text)
    assert line.isprintable()
    assert line.split(" ") == [printable(word) for word in text.split()] or not text.split()
    assert one_line(ValueError(text)) == (line or "ValueError")


@given(st.text())
def test_printable_shows_what_can_be_seen_and_escapes_the_rest(text):
    shown = printable(text)
    assert shown.isprintable()
    assert set(text) & set("\\'") or ast.literal_eval(f"'{shown}'") == text
    assert (shown == text) == text.isprintable()


def test_an_error_without_words_gives_its_name():
    assert one_line(DataError()) == "DataError"
    assert one_line("") == ""
