"""The documentation site: it builds without a warning, and has every command and every public name."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from besnn.cli.app import app

ROOT = Path(__file__).parents[1]


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


def test_public_names_in_pages_are_links(site: Path) -> None:
    page = (site / "method.html").read_text(encoding="utf-8")
    assert re.search(r'href="api/besnn.layers.html#besnn.layers.batch_ensemble"', page)


def test_every_page_is_in_the_menu() -> None:
    config = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    pages = {path.name for path in (ROOT / "docs").glob("*.md")}
    assert pages <= set(re.findall(r"[\w-]+\.md", config))


def test_the_citation_is_well_formed() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["cff-version"] == "1.2.0"
    assert {"title", "authors", "message", "preferred-citation"} <= set(citation)
