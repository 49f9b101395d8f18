"""The import direction that docs/architecture.md lays down, read off the source; and what importing besnn costs."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import besnn

SOURCE = Path(besnn.__file__).parent
FOUNDATION = {"version", "errors", "checks", "settings", "storage"}

# What each unit may import besides the foundation. A unit is a package or a top-level module.
MAY_IMPORT: dict[str, set[str]] = {
    "data": set(),
    "layers": set(),
    "model": {"layers"},
    "objective": {"layers", "model"},
    "baselines": {"layers", "model", "objective"},
    "detection": set(),
    "recipe": {"layers", "model", "objective", "baselines", "detection"},
    "evaluation": {"data", "detection"},
    "detector": {"data", "model", "detection", "recipe", "evaluation"},
    "training": {"data", "layers", "model", "objective", "detection", "evaluation", "recipe", "detector"},
    "batch": {"data", "detection"},
    "triage": {"data", "detector", "evaluation"},
    "export": {"model", "detection", "detector"},
    "serve": {"data", "detection", "detector"},
    "ray": {"data", "detector", "batch", "serve"},
    "estimator": {"data", "detection", "recipe", "training", "detector"},
    "demo": {"data", "detector", "evaluation", "training"},
    "wrapping": {"data", "layers", "model", "detection", "recipe", "detector", "training"},
}
MAY_IMPORT |= {"cli": set(MAY_IMPORT), "__main__": {"cli"}}


def unit_of(module: str) -> str:
    """The unit that a module called `besnn.…` belongs to."""
    return module.split(".")[1] if "." in module else ""


def imports_of(path: Path) -> Iterator[str]:
    """The besnn modules that a file imports anywhere, but for those that only a type checker sees."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    unseen = {
        id(node)
        for branch in ast.walk(tree)
        if isinstance(branch, ast.If) and isinstance(branch.test, ast.Name) and branch.test.id == "TYPE_CHECKING"
        for node in ast.walk(branch)
    }
    for node in ast.walk(tree):
        if id(node) in unseen:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] == "besnn")
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            if node.module == "besnn":
                yield from (f"besnn.{alias.name}" for alias in node.names if alias.name not in besnn._HOMES)
                yield from (besnn._HOMES[alias.name] for alias in node.names if alias.name in besnn._HOMES)
            elif node.module is not None and node.module.startswith("besnn."):
                yield node.module


def module_of(path: Path) -> str:
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = [path for path in sorted(SOURCE.rglob("*.py")) if path != SOURCE / "__init__.py"]


@pytest.mark.parametrize("path", FILES, ids=module_of)
def test_imports_point_one_way(path):
    unit = unit_of(module_of(path))
    allowed = FOUNDATION | {unit, ""} | MAY_IMPORT.get(unit, set())
    for module in imports_of(path):
        assert unit_of(module) in allowed, f"{unit} must not import {module}"


def test_every_unit_has_its_place():
    units = {unit_of(module_of(path)) for path in FILES}
    assert units - FOUNDATION <= set(MAY_IMPORT)


def test_the_plan_itself_has_no_circles():
    placed: set[str] = set()
    while len(placed) < len(MAY_IMPORT):
        free = {unit for unit, needs in MAY_IMPORT.items() if unit not in placed and needs - {unit} <= placed}
        assert free, f"a circle among {sorted(set(MAY_IMPORT) - placed)}"
        placed |= free


@pytest.mark.parametrize(
    ("module", "absent"),
    [
        ("besnn", ["torch", "numpy", "sklearn", "lightning", "pydantic"]),
        ("besnn.data", ["torch", "lightning", "matplotlib", "pandas"]),
        ("besnn.ray.sources", ["torch", "ray"]),
        ("besnn.evaluation.report", ["matplotlib.pyplot", "scipy", "sklearn"]),
        ("besnn.detector", ["lightning", "matplotlib", "scipy", "sklearn", "ray", "fastapi"]),
    ],
)
def test_what_an_import_does_not_bring_in(module, absent):
    code = f"import sys, {module}; print([name for name in {absent!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_public_names_are_there_when_asked_for():
    for name in besnn.__all__:
        assert getattr(besnn, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'bogus'"):
        _ = besnn.bogus
