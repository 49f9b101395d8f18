"""The pages of the site that are made when it is built: the gallery, the help of the commands, and the public names.

No file holds them, so they cannot go out of date. A public name such as `besnn.layers.fold` becomes a link in every page.
"""

import importlib
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from typer.testing import CliRunner

from besnn.cli.app import app

ROOT = Path(__file__).parents[1]
EXAMPLES = (
    *("two_moons", "own_table", "own_images", "wrap_network", "false_alarm_rate", "label_sets", "drift_alarm"),
    *("service_client", "onnx_runtime", "own_score"),
)
PACKAGES = re.findall(r"api/(besnn[\w.]*)\.md", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
NAMES = {
    package: [name for name in importlib.import_module(package).__all__ if not name.startswith("_")] for package in PACKAGES
}
PUBLIC = {f"{package}.{name}" for package, names in NAMES.items() for name in names}
OUTSIDE = re.compile(r"\[([^\]]+)\]\(\.\./([^)]+)\)")
NAMED = re.compile(r"(?<!\[)`(besnn(?:\.\w+)+)`")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made."""
    pages = {"gallery.md": gallery_page(), "commands.md": commands_page()} | {
        f"api/{package}.md": api_page(package) for package in PACKAGES
    }
    for path, text in pages.items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Link public names to their reference, and name files outside docs/, for which the site has no page."""
    markdown = OUTSIDE.sub(r"\1 (`\2`)", markdown)
    return NAMED.sub(lambda match: f"[{match[0]}][{match[1]}]" if match[1] in PUBLIC else match[0], markdown)


def gallery_page() -> str:
    """Return every example: what it shows, its picture and its code."""
    parts = ["# Gallery\n\nShort scripts that run as they are, from the folder `examples/`.\n"]
    for name in EXAMPLES:
        _, docstring, code = (ROOT / "examples" / f"{name}.py").read_text(encoding="utf-8").split('"""', 2)
        title, _, text = docstring.partition("\n")
        picture = f"![{title}](gallery/{name}.png)" if (ROOT / "docs" / "gallery" / f"{name}.png").exists() else ""
        block = f'```python title="examples/{name}.py"\n{code.strip()}\n```'
        parts.append(f"## {title.rstrip('.')}\n\n{text.strip()}\n\n{picture}\n\n{block}\n")
    return "\n".join(parts)


def commands_page() -> str:
    """Return the help of every command."""
    parts = ["# Commands\n\nWhat `besnn COMMAND --help` says, for every command.\n"]
    for command in _commands():
        shown = CliRunner().invoke(app, [*command, "--help"], env={"COLUMNS": "100", "TERM": "dumb", "NO_COLOR": "1"})
        parts.append(f"## besnn {' '.join(command)}\n\n```text\n{shown.output.strip()}\n```\n")
    return "\n".join(parts)


def _commands() -> list[list[str]]:
    """Return the words of every command, sub-commands included."""
    words = [[each.name or each.callback.__name__] for each in app.registered_commands if each.callback]
    for group in app.registered_groups:
        inner = group.typer_instance
        assert inner is not None
        words += [
            [str(group.name or inner.info.name), each.name or each.callback.__name__]
            for each in inner.registered_commands
            if each.callback
        ]
    return words


def api_page(package: str) -> str:
    """Return the reference of a package: every name that it exports."""
    parts = [f"# {package}\n\n{importlib.import_module(package).__doc__}\n"]
    return "\n".join([*parts, *(f"::: {package}.{name}\n" for name in NAMES[package])])
