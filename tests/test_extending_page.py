"""docs/extending.md: every code block runs as it is, and what it adds works throughout."""

import copy
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from besnn import Detector
from besnn.data import FORMATS, two_moons
from besnn.detection import DENSITIES, SCORES
from besnn.errors import DataError, InputError
from besnn.model import BACKBONES
from besnn.recipe import METHODS, load_recipe, parse_recipe

PAGE = (Path(__file__).parents[1] / "docs" / "extending.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", PAGE, flags=re.MULTILINE | re.DOTALL))
REGISTRIES: list[dict[str, Any]] = [SCORES, DENSITIES, METHODS, BACKBONES, FORMATS]  # type: ignore[list-item]  # each has its own kind of entries
NEW = two_moons(50, seed=1).inputs


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], dict[str, Any]]]:
    """Run the code of a section in an empty folder and return its names; the registries are restored afterwards."""
    before = [{name: copy.copy(entry) for name, entry in registry.items()} for registry in REGISTRIES]
    monkeypatch.chdir(tmp_path)

    def run(heading: str) -> dict[str, Any]:
        names: dict[str, Any] = {"__name__": "page"}
        for block in re.findall(r"^```python\n(.*?)^```", SECTIONS[heading], flags=re.MULTILINE | re.DOTALL):
            exec(block, names)
        return names

    yield run
    for registry, entries in zip(REGISTRIES, before, strict=True):
        registry.clear()
        registry.update(entries)


def test_a_score(run) -> None:
    detector = run("A score")["detector"]
    assert detector.scoring.name == "distance-ratio"
    evidence, _ = next(iter(detector.outputs(NEW)))
    nearest, second = np.sort(evidence.mean(dim=0).cpu().numpy(), axis=1).T
    np.testing.assert_allclose(detector.score(NEW), nearest / second, rtol=1e-4)


def test_a_density(run, capsys) -> None:
    detector = run("A density")["detector"]
    assert "centre-distance" in capsys.readouterr().out
    again = Detector.load(Path("moons.safetensors"))
    np.testing.assert_allclose(again.score(NEW, "centre-distance"), detector.score(NEW, "centre-distance"), rtol=1e-5)
    del DENSITIES["centre-distance"]
    with pytest.raises(DataError, match="centre-distance"):
        Detector.load(Path("moons.safetensors"))


def test_a_method(run, capsys) -> None:
    names = run("A method")
    detector = names["detector"]
    assert detector.model.method == detector.recipe.method.name == "prototypes"
    assert capsys.readouterr().out.strip() == "['upper']"
    again = Detector.load(Path("prototypes.safetensors"))
    assert again.recipe == detector.recipe
    np.testing.assert_allclose(again.score(NEW), detector.score(NEW), rtol=1e-5)
    content = detector.recipe.model_dump(mode="json")
    with pytest.raises(InputError, match=r"'method\.spraed' is unknown: allowed here are name, spread"):
        parse_recipe(content, ["method={name: prototypes, spraed: 1}"])
    with pytest.raises(InputError, match=r"training\.ramps\.entropy: the objective of prototypes has the terms classification"):
        parse_recipe(content, ["training.ramps={entropy: {}}"])
    del METHODS["prototypes"]
    with pytest.raises(DataError, match=r"'method\.name' is 'prototypes': use one of be-snn"):
        Detector.load(Path("prototypes.safetensors"))


def test_a_backbone(run, capsys) -> None:
    detector = run("A backbone")["detector"]
    assert capsys.readouterr().out.strip() == "3"
    assert [type(layer).__name__ for layer in detector.model.feature_extractor.trunk].count("BatchEnsembleLinear") == 3
    assert load_recipe("digits", ["backbone={name: dense}"]).backbone.depth == 2
    with pytest.raises(InputError, match=r"'backbone\.depth' is 9: give 8 or less"):
        load_recipe("digits", ["backbone.depth=9"])
    del BACKBONES["dense"]
    with pytest.raises(InputError, match="'dense' is unknown: use one of auto, mlp"):
        load_recipe("digits", ["backbone.name=dense"])


def test_a_data_format(run, capsys) -> None:
    run("A data format")
    assert capsys.readouterr().out.splitlines() == ["('a', 'b')", """['0', '1'] ['', "column 'y' is empty"]"""]


def test_every_extension_is_tested() -> None:
    assert set(SECTIONS) == {"A score", "A density", "A method", "A backbone", "A data format"}
