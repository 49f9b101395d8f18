"""docs/decisions.md: its Python runs, and its options exist."""

import re
from pathlib import Path

import numpy as np
import typer.main

from besnn.cli.app import app
from besnn.data import two_moons
from besnn.training import load_recipe
from besnn.training.fit import fit_detector

PAGE = (Path(__file__).resolve().parents[1] / "docs" / "decisions.md").read_text(encoding="utf-8")


def test_its_python_runs(tiny_recipe, moons):
    data, other = two_moons(200), two_moons(400, seed=1)
    names = {
        "np": np,
        "fit_detector": fit_detector,
        "detector": fit_detector(tiny_recipe(), moons).detector,
        "recipe": load_recipe("two-moons", ["training.epochs=1", "data.calibration=0", "score.name=method"]),
        "data": data,
        "inputs": other.inputs,
        "labels": other.labels,
        "new": np.concatenate([data.inputs[:20], data.inputs[:20] + 90]),
    }
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) >= 2
    for block in blocks:
        exec(block, names)
    assert names["predictions"].label_sets.shape == (40, 2)
    assert names["p"].shape == (40,)


def test_its_options_exist():
    commands = typer.main.get_command(app).commands
    for name, options in re.findall(r"besnn (\w+)((?: +[^`\n]*)?)", PAGE):
        known = {option for parameter in commands[name].params for option in parameter.opts}
        assert set(re.findall(r"--[\w-]+", options)) <= known, (name, options)
