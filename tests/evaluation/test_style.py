"""The style leaves no trace, escapes nothing wrongly, and writes the same bytes twice."""

import base64
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import matplotlib
import pytest

from besnn.errors import InputError
from besnn.evaluation.plots import roc_curves
from besnn.evaluation.style import as_data_uri, save_figure, shortened


def draw(name: str) -> str:
    return as_data_uri(roc_curves([0.1, 0.2, 0.5], {name: [0.3, 0.4]}))


def texts(uri: str) -> set[str]:
    root = ElementTree.fromstring(base64.b64decode(uri.partition(",")[2]))
    return {element.text or "" for element in root.iter("{http://www.w3.org/2000/svg}text")}


def test_global_settings_are_left_alone() -> None:
    before = dict(matplotlib.rcParams)
    draw("noise")
    assert dict(matplotlib.rcParams) == before


def test_the_same_figure_gives_the_same_bytes() -> None:
    assert draw("noise") == draw("noise")


@pytest.mark.parametrize("name", ["cost $5 and $6", r"$\broken{", "<b>&amp;</b>", "服装", "_hidden"])
def test_names_are_drawn_as_they_are(name: str) -> None:
    assert name in {text.strip() for text in texts(draw(name))}


@pytest.mark.parametrize(("extension", "magic"), [("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")])
def test_formats_by_extension(extension: str, magic: bytes, tmp_path: Path) -> None:
    path = save_figure(roc_curves([0.1], {"noise": [0.3]}), tmp_path / f"figure.{extension}")
    assert path.read_bytes().startswith(magic)


def test_an_unknown_extension_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"'figure\.docx': end its name in one of \.png"):
        save_figure(roc_curves([0.1], {"noise": [0.3]}), tmp_path / "figure.docx")


@pytest.mark.parametrize("length", [5, 6, 20])
def test_shortened_fits_and_keeps_both_ends(length: int) -> None:
    text = "abcdefghijklmnopqrstuvwxyz"
    short = shortened(text, length)
    assert len(short) == length
    head, tail = short.split("…")
    assert text.startswith(head)
    assert text.endswith(tail)
    assert shortened(text, 26) == text
