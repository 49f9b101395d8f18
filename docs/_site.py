"""The pages of the site that are made when it is built: the gallery, the help of the commands, and the public names.

No file holds them, so they cannot go out of date. A public name such as `besnn.layers.fold` becomes a link in every page.
"""

import importlib
import json
import re
from pathlib import Path
from typing import Any

import griffe
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from typer.testing import CliRunner

from besnn.cli.app import app

ROOT = Path(__file__).parents[1]
EXAMPLES = (
    *("first_steps", "wrap_and_decide"),  # notebooks
    *("two_moons", "own_table", "own_images", "wrap_network", "false_alarm_rate", "label_sets", "why_flagged"),
    *("drift_alarm", "service_client", "onnx_runtime", "ray_on_one_machine", "own_score"),
)
PACKAGES = re.findall(r"api/(besnn[\w.]*)\.md", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
NAMES = {
    package: [name for name in importlib.import_module(package).__all__ if not name.startswith("_")] for package in PACKAGES
}
PUBLIC = {f"{package}.{name}" for package, names in NAMES.items() for name in names}
EXAMPLE = re.compile(r"\]\(\.\./examples/(\w+)\.\w+\)")
OUTSIDE = re.compile(r"\[([^\]]+)\]\(\.\./([^)]+)\)")
NAMED = re.compile(r"(?<!\[)`(besnn(?:\.\w+)+)`")
DOCTEST = re.compile(r"^>>> (?:.+\n?)+", flags=re.MULTILINE)
NAMED_IN_DOCSTRING = re.compile(r"(?<= )<code>(besnn(?:\.\w+)+)</code>")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made."""
    pages = {"gallery.md": gallery_page(), "commands.md": commands_page()} | {
        f"api/{package}.md": api_page(package) for package in PACKAGES
    }
    for path, text in pages.items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Link public names to their reference and examples to the gallery; name other files, for which the site has no page."""
    markdown = EXAMPLE.sub(r"](gallery.md#\1)", markdown)
    markdown = OUTSIDE.sub(r"\1 (`\2`)", markdown)
    return NAMED.sub(lambda match: f"[{match[0]}][{match[1]}]" if match[1] in PUBLIC else match[0], markdown)


class Doctests(griffe.Extension):
    """Makes the examples in docstrings blocks of code; to Markdown, `>>>` would be a quotation."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Change the docstring of one module, class, function or attribute."""
        if obj.docstring is not None:
            obj.docstring.value = DOCTEST.sub(lambda match: f"```pycon\n{match[0].rstrip()}\n```\n", obj.docstring.value)


def on_page_content(html: str, **_: Any) -> str:
    """Link public names in docstrings, which are not a part of the Markdown."""
    link = r'<autoref identifier="\1"><code>\1</code></autoref>'
    return NAMED_IN_DOCSTRING.sub(lambda match: match.expand(link) if match[1] in PUBLIC else match[0], html)


def gallery_page() -> str:
    """Return every example: what it shows, its picture and its code."""
    parts = ["# Gallery\n\nNotebooks and short scripts that run as they are, from the folder `examples/`.\n"]
    for name in EXAMPLES:
        notebook = ROOT / "examples" / f"{name}.ipynb"
        parts.append(_notebook(notebook) if notebook.exists() else _script(ROOT / "examples" / f"{name}.py"))
    return "\n".join(parts)


def _script(path: Path) -> str:
    _, docstring, code = path.read_text(encoding="utf-8").split('"""', 2)
    title, _, text = docstring.partition("\n")
    picture = f"![{title}](gallery/{path.stem}.png)" if (ROOT / "docs" / "gallery" / f"{path.stem}.png").exists() else ""
    block = f'```python title="examples/{path.name}"\n{code.strip()}\n```'
    return f"## {title.rstrip('.')} {{ #{path.stem} }}\n\n{text.strip()}\n\n{picture}\n\n{block}\n"


def _notebook(path: Path) -> str:
    """Return the cells of a notebook, its headings one level lower."""
    parts = []
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "code":
            parts.append(f'```python title="examples/{path.name}"\n{source}\n```')
            parts += [_output(output) for output in cell["outputs"]]
        else:
            parts.append(re.sub(r"^#", "##", source, flags=re.MULTILINE).replace("](../docs/", "]("))
    title, _, rest = "\n\n".join(parts).partition("\n")
    return f"{title} {{ #{path.stem} }}\n{rest}\n"


def _output(output: dict[str, Any]) -> str:
    if "text" in output:
        return f"```text\n{''.join(output['text']).rstrip()}\n```"
    return f"![The figure that this code draws](data:image/png;base64,{''.join(output['data']['image/png']).strip()})"


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
