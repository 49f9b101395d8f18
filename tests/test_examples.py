"""The examples of the gallery run as they are, and draw their pictures."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
WITH_PICTURE = sorted(path.stem for path in (ROOT / "docs" / "gallery").glob("*.png"))


def test_every_example_has_a_picture_or_a_test_of_its_own() -> None:
    assert {path.stem for path in (ROOT / "examples").glob("*.py")} == {*WITH_PICTURE, "onnx_runtime"}  # tests/test_export.py


@pytest.mark.parametrize("name", WITH_PICTURE)
def test_it_runs_and_draws(name: str, tmp_path: Path) -> None:
    environment = os.environ | {"MPLBACKEND": "agg", "PYTHONWARNINGS": "error::UserWarning:besnn", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(ROOT / "examples" / f"{name}.py")]
    ran = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout
    assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
