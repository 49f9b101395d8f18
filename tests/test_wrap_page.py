"""docs/wrap.md: its code runs, its commands exist, and what it says comes true."""

import re
import shlex
from pathlib import Path

import numpy as np

from besnn.wrapping import score_names

PAGE = (Path(__file__).parents[1] / "docs" / "wrap.md").read_text(encoding="utf-8")


def test_its_code_runs_and_keeps_its_word(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for block in re.findall(r"^```python\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL):
        exec(block, names)
    detector, pixels, digits = (names[name] for name in ("detector", "pixels", "digits"))
    assert detector.predict(pixels[digits.target >= 8]).is_ood.mean() > 0.5
    assert names["answers"].is_ood.mean() < 0.15
    assert (names["answers"].indices == digits.target[names["test"]]).mean() > 0.9
    assert capsys.readouterr().out.splitlines()[-1] == "True"
    assert np.array_equal(names["again"].score(pixels[:20]), detector.score(pixels[:20]))


def test_it_names_every_score() -> None:
    assert all(f"`{name}`" in PAGE for name in score_names())


def test_its_commands_have_options_that_exist() -> None:
    from besnn.cli.wrap import wrap

    text = Path(wrap.__code__.co_filename).read_text(encoding="utf-8")
    for line in re.findall(r"^besnn wrap .*", PAGE, flags=re.MULTILINE):
        for word in shlex.split(line, comments=True):
            if word.startswith("--"):
                assert f"{word.removeprefix('--').replace('-', '_')}:" in text
