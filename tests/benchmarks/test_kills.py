import shutil
from pathlib import Path

import numpy as np
import pytest

from benchmarks.kills import STEPS, check, content, kills_table, measure_step
from besnn.errors import DataError
from besnn.training.fit import fit_detector


@pytest.fixture
def folder(tmp_path: Path, tiny_recipe, moons) -> Path:
    fit_detector(tiny_recipe("training.epochs=1"), moons).detector.save(tmp_path / "model.safetensors")
    names = np.asarray(moons.class_names)[moons.labels]
    rows = [f"{x},{y},{name}" for (x, y), name in zip(moons.inputs, names, strict=True)]
    (tmp_path / "moons.csv").write_text("\n".join(["x1,x2,label", *rows]))
    return tmp_path


def test_a_killed_command_leaves_nothing_by_halves(folder):
    found = measure_step(STEPS["calibrate"], folder, kills=1, disks=0, rng=np.random.default_rng(1))
    table = kills_table({"runs": [{"step": "calibrate", **found}]})
    assert table.rows[0][:2] == ("`besnn calibrate`", "1")


def test_half_a_file_and_another_one_are_found_out(folder):
    model = folder / "model.safetensors"
    whole = content(model)
    with pytest.raises(AssertionError, match="neither the old nor the new"):
        check(STEPS["calibrate"], folder, [None], [b"another"])
    shutil.copy(model, folder / "copy.safetensors")
    assert content(folder / "copy.safetensors") == whole
    model.write_bytes(model.read_bytes()[:-1])
    with pytest.raises(DataError, match="truncated"):
        content(model)
