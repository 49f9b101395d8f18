"""The built wheel is complete and works outside the source tree."""

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = folder.glob("*.whl")
    return built


def test_wheel_holds_every_file_of_the_package(wheel: Path) -> None:
    package = ROOT / "src"
    expected = {
        str(path.relative_to(package))
        for path in package.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".pyc"
    }
    assert expected <= set(zipfile.ZipFile(wheel).namelist())


def test_wheel_names_the_paper(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    (metadata,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
    assert "Project-URL: Paper, https://arxiv.org/abs/2206.12911" in archive.read(metadata).decode()


def test_wheel_trains_and_predicts_outside_the_source_tree(wheel: Path, tmp_path: Path) -> None:
    target = tmp_path / "site"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*pip, "--target", str(target), str(wheel)], check=True, timeout=300)
    script = f"""
import sys
sys.path.insert(0, {str(target)!r})
import json, besnn
from besnn.data import two_moons
from besnn.training import load_recipe
detector = besnn.fit_detector(load_recipe("two-moons", ["training.epochs=2"]), two_moons(500)).detector
detector.save("model.safetensors")
far = besnn.Detector.load("model.safetensors").predict([[90.0, 90.0]])
print(json.dumps({{"home": besnn.__file__, "is_ood": bool(far.is_ood[0])}}))
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout.splitlines()[-1])
    assert Path(answer["home"]).is_relative_to(target)
    assert answer["is_ood"]
