"""Run commands in this process, on models that train in a second."""

import csv
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from besnn.cli.app import run

TINY = [
    "--set=backbone.hidden=[16]",
    "--set=backbone.feature_dim=8",
    "--set=method.noise_dim=8",
    "--set=method.hidden_dim=16",
    "--set=method.members=2",
]


class Outcome(NamedTuple):
    """The exit code, standard output and standard error of a command."""

    code: int
    out: str
    err: str


Besnn = Callable[..., Outcome]
WriteCsv = Callable[[Path, Sequence[str], Iterable[Sequence[object]]], Path]


@pytest.fixture
def besnn(capsys: pytest.CaptureFixture[str]) -> Besnn:
    """Run a command."""

    def command(*arguments: object) -> Outcome:
        capsys.readouterr()
        code = run([str(argument) for argument in arguments])
        return Outcome(code, *capsys.readouterr())

    return command


@pytest.fixture(scope="session")
def moons_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A calibrated model of Two Moons; read only."""
    model = tmp_path_factory.mktemp("moons") / "moons.safetensors"
    assert run(["train", "two-moons", "-o", str(model), "--epochs", "8", "-q", *TINY]) == 0
    return model


@pytest.fixture(scope="session")
def stripes_model(stripe_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A calibrated model of images of stripes, 8x8 grey; read only."""
    model = tmp_path_factory.mktemp("stripes-model") / "stripes.safetensors"
    options = [
        "--set=data.image={size: [8, 8], channels: 1}",
        "--set=data.calibration=0.3",
        "--alpha=0.1",
        "--set=pretraining=null",
    ]
    assert run(["train", str(stripe_folder), "-o", str(model), "--epochs", "6", "-q", *TINY, *options]) == 0
    return model


@pytest.fixture(scope="session")
def uncalibrated_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of Two Moons without a threshold."""
    model = tmp_path_factory.mktemp("uncalibrated") / "model.safetensors"
    assert run(["train", "two-moons", "-o", str(model), "--epochs=1", "-q", *TINY, "--set=data.calibration=0"]) == 0
    return model


@pytest.fixture(scope="session")
def tiny() -> list[str]:
    """Options of `train` for a very small network."""
    return TINY


@pytest.fixture(scope="session")
def write_csv() -> WriteCsv:
    """Write a table."""

    def write(path: Path, header: Sequence[str], rows: Iterable[Sequence[object]]) -> Path:
        with path.open("w", newline="") as file:
            csv.writer(file).writerows([header, *rows])
        return path

    return write
