"""docs/architecture.md names files, packages and attributes that exist, and each file of a walk once."""

import re
from pathlib import Path

import pytest

import besnn
from besnn.model import OODClassifier

SOURCE = Path(besnn.__file__).parent
PAGE = (Path(__file__).resolve().parents[1] / "docs" / "architecture.md").read_text(encoding="utf-8")
WALKS = re.split(r"^\*\*", PAGE.split("## Four walks")[1].split("## One protocol")[0], flags=re.MULTILINE)[1:]


def files_in(text: str) -> list[str]:
    return re.findall(r"`([\w/]+\.py)`", text)


def test_there_are_four_walks():
    assert [walk.split("`")[1].split(" ")[0].split("(")[0] for walk in WALKS] == ["fit_detector", "besnn", "besnn", "POST"]


@pytest.mark.parametrize("walk", WALKS, ids=lambda walk: walk.split("`")[1])
def test_a_walk_names_files_that_exist_once_each(walk: str):
    files = files_in(walk)
    assert len(files) > 7
    assert [name for name in files if not (SOURCE / name).is_file()] == []
    assert len(set(files)) == len(files)


def test_every_package_has_a_row():
    rows = {name for line in PAGE.splitlines() if line.startswith("| `") for name in re.findall(r"`(\w+)`", line.split("|")[1])}
    units = {path.stem for path in SOURCE.iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file()}
    assert units - {"__init__", "__main__", "version"} <= rows


def test_the_protocol_is_that_of_the_model():
    table = PAGE.split("| attribute or method | is |")[1].split("\n\n")[0]
    names = [name for line in table.splitlines()[2:] for name in re.findall(r"`(\w+)", line.split("|")[1])]
    described = {*dir(OODClassifier), *OODClassifier.__annotations__}
    assert set(names) <= described
