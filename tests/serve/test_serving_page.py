"""docs/serving.md says what is true of the service."""

import json
import re
from pathlib import Path

import httpx
import pytest

from besnn.serve import Settings

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "serving.md").read_text(encoding="utf-8")
SOURCES = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "src/besnn/serve").glob("*.py"))


def test_its_first_question_is_answered(moons_client: httpx.Client):
    (body,) = re.findall(r"predict -H 'Content-Type: application/json' -d '(.*)'", PAGE)
    answer = moons_client.post("/v1/predict", content=body, headers={"Content-Type": "application/json"}).json()
    (shown,) = re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)
    (first, *_), (real, *_) = json.loads(shown)["predictions"], answer["predictions"]
    assert first.keys() == real.keys()


def test_its_limits_are_the_defaults():
    for names, values in re.findall(r"^\| (`\w+`(?:, `\w+`)*) \| ([\d,. ]+) \|", PAGE, re.MULTILINE):
        for name, value in zip(re.findall(r"\w+", names), values.split(", "), strict=True):
            assert getattr(Settings(), name) == float(value.replace(",", "")), name
    limits = {name for name in Settings.model_fields if name.startswith(("max_", "deadline_", "drift_alarm", "drift_window"))}
    assert limits == {name for name in limits if f"`{name}`" in PAGE}


@pytest.mark.parametrize("code", sorted(set(re.findall(r'Problem\(\s*\d+,\s*"([\w-]+)"', SOURCES))))
def test_it_explains_every_problem(code: str):
    assert f"`{code}`" in PAGE


def test_its_addresses_exist(moons_client: httpx.Client):
    paths = {path for path in re.findall(r"`(?:GET |POST )?(/[\w/.]*)`", PAGE) if path != "/"}
    assert len(paths) > 8
    described = moons_client.get("/openapi.json").json()["paths"].keys() | {"/openapi.json"}
    assert {path.replace("NAME", "{model_name}") for path in paths} <= described
