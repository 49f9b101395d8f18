"""The documentation site: it builds without a warning, and has every command and every public name."""

import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
import yaml

from besnn.cli.app import app

ROOT = Path(__file__).parents[1]
SEE_OTHERS = {
    *("besnn.data.FORMATS", "besnn.model.BACKBONES", "besnn.recipe.METHODS"),
    *("besnn.detection.SCORES", "besnn.detection.DENSITIES"),
    *("besnn.data.Inputs", "besnn.layers.Initialiser", "besnn.model.EvidenceKind", "besnn.detection.Score"),
    *("besnn.model.OODClassifier", "besnn.model.Objective", "besnn.detection.Density", "besnn.baselines.SingleNetwork"),
    *("besnn.baselines.SingleNetworkConfig", "besnn.baselines.EnsembleConfig"),
}
"""Registries, types and base classes, which refer to the name whose example shows them."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site; a warning, such as a link that leads nowhere, is an error (`strict` in mkdocs.yml)."""
    target = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(target)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert built.returncode == 0, built.stderr + built.stdout
    return target


def test_every_command_has_its_help(site: Path) -> None:
    page = (site / "commands.html").read_text(encoding="utf-8")
    names = [command.name or command.callback.__name__ for command in app.registered_commands if command.callback]
    assert len(names) > 5
    assert all(f'id="besnn-{name}"' in page for name in names)
    assert 'id="besnn-data-list"' in page


def test_every_public_name_has_a_reference(site: Path) -> None:
    packages = sorted(ROOT.glob("src/besnn/*/__init__.py"))
    documented = {page.stem for page in (site / "api").glob("besnn*.html")}
    exporting = {f"besnn.{path.parent.name}" for path in packages if "__all__" in path.read_text(encoding="utf-8")}
    assert exporting - {"besnn.cli"} <= documented
    page = (site / "api" / "besnn.layers.html").read_text(encoding="utf-8")
    assert 'id="besnn.layers.fold"' in page


def test_every_public_name_has_an_example(site: Path) -> None:
    for page in (site / "api").glob("besnn*.html"):
        public = {f"{page.stem}.{name}" for name in import_module(page.stem).__all__ if not name.startswith("_")}
        parts = re.split(rf'<h2 id="({re.escape(page.stem)}\.\w+)"', page.read_text(encoding="utf-8"))
        assert set(parts[1::2]) == public
        for name, text in zip(parts[1::2], parts[2::2], strict=True):
            shown = re.search(r"\bSee <a[^>]*><code>besnn\.", text) if name in SEE_OTHERS else "&gt;&gt;&gt;" in text
            assert shown, f"{name} has no example: add one that runs to its docstring"


def test_public_names_in_pages_are_links(site: Path) -> None:
    page = (site / "method.html").read_text(encoding="utf-8")
    assert re.search(r'href="api/besnn.layers.html#besnn.layers.batch_ensemble"', page)


def test_the_gallery_has_every_example(site: Path) -> None:
    page = (site / "gallery.html").read_text(encoding="utf-8")
    names = {path.stem for path in (ROOT / "examples").iterdir() if path.suffix in (".py", ".ipynb")}
    assert names <= set(re.findall(r'<h2 id="(\w+)"', page))
    assert re.search(r"<code>1000 rows to train on", page)  # what a notebook printed
    assert 'src="data:image/png;base64,' in page
    assert 'href="gallery.html#first_steps"' in (site / "guide-python.html").read_text(encoding="utf-8")


def test_every_page_is_in_the_menu() -> None:
    config = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    pages = {path.name for path in (ROOT / "docs").glob("*.md")}
    assert pages <= set(re.findall(r"[\w-]+\.md", config))


def test_the_citation_is_well_formed() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["cff-version"] == "1.2.0"
    assert {"title", "authors", "message", "preferred-citation"} <= set(citation)
