"""The workflow tests what pyproject.toml claims."""

import tomllib
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
JOBS = yaml.safe_load((ROOT / ".github/workflows/test.yml").read_text())["jobs"]
PYTHON = "Programming Language :: Python :: "


def test_every_python_that_is_claimed_is_tested():
    claimed = [line.removeprefix(PYTHON) for line in PROJECT["classifiers"] if line.startswith(PYTHON)]
    assert JOBS["test"]["strategy"]["matrix"]["python"] == claimed
    assert PROJECT["requires-python"] == f">={claimed[0]}"


def test_lower_bounds_are_tested_on_the_oldest_python():
    steps = JOBS["lower-bounds"]["steps"]
    assert f">={steps[1]['with']['python-version']}" == PROJECT["requires-python"]
    assert any("--resolution lowest-direct" in step.get("run", "") for step in steps)


def test_the_wheel_is_tested_with_each_extra_alone():
    tested = {each["extra"].strip("[]") for each in JOBS["wheel"]["strategy"]["matrix"]["include"]}
    assert tested == {"", *PROJECT["optional-dependencies"]} - {"dev"}
