"""The examples of the gallery and the notebooks run as they are."""

import contextlib
import io
import json
import runpy
from collections.abc import Iterator
from pathlib import Path

import matplotlib.pyplot as plt
import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
PICTURES = sorted(path.stem for path in (EXAMPLES.parent / "docs" / "gallery").glob("*.png"))
NOTEBOOKS = sorted(EXAMPLES.glob("*.ipynb"))


@pytest.fixture(autouse=True)
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "agg")
    plt.switch_backend("agg")
    yield
    plt.close("all")


def test_every_example_has_a_picture_or_a_test_of_its_own() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == {*PICTURES, "onnx_runtime"}  # tests/test_export.py


@pytest.mark.parametrize("name", PICTURES)
def test_it_runs_and_draws(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if name.startswith("ray"):
        pytest.importorskip("ray", reason="needs the ray extra")
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    assert capsys.readouterr().out
    assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_from_top_to_bottom_and_prints_as_much_as_it_shows(path: Path) -> None:
    space: dict[str, object] = {"__name__": "__main__"}
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] == "code":
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                exec(compile("".join(cell["source"]), path.name, "exec"), space)
            shown = [line for output in cell["outputs"] for line in output.get("text", ())]
            assert len(printed.getvalue().splitlines()) == len(shown)
