import ast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from besnn.errors import DataError, InputError, one_line, printable, reading


@given(st.text())
def test_one_line_is_one_line_with_every_word(text):
    line = one_line(text)
    assert line.isprintable()
    assert line.split(" ") == [printable(word) for word in text.split()] or not text.split()
    assert one_line(ValueError(text)) == (line or "ValueError")


@given(st.text())
def test_printable_shows_what_can_be_seen_and_escapes_the_rest(text):
    shown = printable(text)
    spaces = dict.fromkeys(map(ord, filter(str.isspace, shown)), " ")  # of all kinds; a line break would be escaped
    assert shown.translate(spaces).isprintable()
    assert "\n" not in shown
    assert set(text) & set("\\'") or ast.literal_eval(f"'{shown}'") == text


def test_an_error_without_words_gives_its_name():
    assert one_line(DataError()) == "DataError"
    assert one_line("") == ""


@pytest.mark.parametrize("error", [ValueError("bad\nheader"), PermissionError(13, "denied"), InputError("not numeric")])
def test_reading_turns_any_error_into_one_line_that_names_the_file(error):
    message = r"^table\.csv cannot be read \(.*\): check that it is complete and readable$"
    with pytest.raises(DataError, match=message), reading("table.csv"):
        raise error


def test_reading_leaves_our_own_errors_about_data_as_they_are():
    with pytest.raises(DataError, match=r"^row 3 is ragged$"), reading("table.csv"):
        raise DataError("row 3 is ragged")


def test_spaces_are_printed_and_control_characters_are_not():
    assert printable("96.7\N{NO-BREAK SPACE}%") == "96.7\N{NO-BREAK SPACE}%"
    assert printable("a\x1b[2J\u202e\n") == r"a\x1b[2J\u202e\n"
