"""Every command and script in the guides runs, in an empty folder, with one epoch of training."""

import re
import runpy
import shlex
from pathlib import Path

import pytest

DOCUMENTS = Path(__file__).parents[2] / "docs"
BLOCK = re.compile(r"^```(sh|python)\n(.*?)^```", re.MULTILINE | re.DOTALL)

SMALL = ["training.epochs=1", "pretraining.epochs=1", "backbone.channels=4"]
OPTIONS = {"guide-images.md": [f"--set={setting}" for setting in SMALL], "guide-table.md": ["--epochs=1"]}


@pytest.mark.no_cover
@pytest.mark.parametrize("guide", ["guide-images.md", "guide-table.md"])
def test_a_guide_can_be_followed(besnn, tmp_path, monkeypatch, guide):
    monkeypatch.chdir(tmp_path)
    blocks = BLOCK.findall((DOCUMENTS / guide).read_text(encoding="utf-8"))
    assert len(blocks) >= 6
    for number, (kind, text) in enumerate(blocks):
        if kind == "python":
            script = tmp_path / f"block{number}.py"
            script.write_text(text.replace('load_recipe("images")', f'load_recipe("images", {SMALL})'))
            runpy.run_path(str(script))
        for line in text.splitlines() if kind == "sh" else ():
            program, *arguments = shlex.split(line)
            assert program == "besnn"
            outcome = besnn(*arguments, *(OPTIONS[guide] if arguments[0] == "train" else []))
            assert outcome.code == 0, outcome.err
    assert (tmp_path / "report.html").exists()
    assert (tmp_path / "model.safetensors").exists()


@pytest.mark.parametrize("guide", ["guide-images.md", "guide-table.md"])
def test_the_settings_in_a_guide_exist(guide):
    from besnn.training import load_recipe

    text = (DOCUMENTS / guide).read_text(encoding="utf-8")
    together = [re.findall(r"--set (\"[^\"]*\"|[^\s`]+)", line) for line in text.splitlines()]
    assert sum(map(len, together)) >= 3
    for settings in together:
        load_recipe("images", [setting.strip('"') for setting in settings])
