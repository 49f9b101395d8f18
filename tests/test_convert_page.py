"""docs/convert.md: its code runs, its settings exist, and what it says comes true."""

import itertools
import re
import shlex
from pathlib import Path

import numpy as np
import torch

from besnn.training import load_recipe

PAGE = (Path(__file__).parents[1] / "docs" / "convert.md").read_text(encoding="utf-8")


def test_a_network_of_the_users_own_becomes_a_detector(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for block in re.findall(r"^```python\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL):
        exec(block, names)
    detector, body, pixels, test = (names[name] for name in ("detector", "body", "pixels", "test"))
    trunk = detector.model.feature_extractor.trunk
    for layer in (0, 4):  # the convolutions
        assert torch.equal(trunk[layer].weight, body[layer].weight)
        assert trunk[layer].r.shape[0] == 4
    before, after = ((indices == names["digits"].target[test]).mean() for indices in (names["plain"], names["answers"].indices))
    assert after > before - 0.02
    assert detector.predict(pixels[~names["known"]]).is_ood.mean() > 0.7
    assert detector.recipe is None
    np.testing.assert_allclose(names["again"].score(pixels[test]), detector.score(pixels[test]), atol=1e-5)


def test_the_commands_name_settings_that_exist() -> None:
    (command,) = [line for line in PAGE.replace("\\\n", " ").splitlines() if line.startswith("besnn train cifar10 -o")]
    words = shlex.split(command)
    settings = [value for option, value in itertools.pairwise(words) if option == "--set"]
    recipe = load_recipe("cifar10", settings)
    assert (recipe.backbone.weights, recipe.backbone.frozen) == ("plain.safetensors", True)
