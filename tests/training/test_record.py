"""Records: written whole, read back, refused where they are none."""

import json
from pathlib import Path

import pytest

from besnn.errors import DataError
from besnn.training import build_method, load_recipe, parse_recipe
from besnn.training.record import model_fields, read_record, write_record


def test_a_record_comes_back_as_it_was_written(tmp_path: Path) -> None:
    recipe = load_recipe("two-moons", ["method.members=2", "training.seed=7"])
    model, _ = build_method(recipe, (2,), 2)
    fields = {"variant": "λ2 = 0", **model_fields(model, recipe)}
    path = tmp_path / "new" / "run.json"
    write_record(path, fields)
    assert read_record(path) == json.loads(path.read_text(encoding="utf-8")) == fields
    assert (fields["method"], fields["members"], fields["seed"]) == ("be-snn", 2, 7)
    assert fields["parameters"] == sum(parameter.numel() for parameter in model.parameters())
    assert parse_recipe(fields["recipe"]) == recipe  # type: ignore[arg-type]
    assert [path.name for path in path.parent.iterdir()] == ["run.json"]


def test_what_json_does_not_know_is_refused_and_the_old_record_stays(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    write_record(path, {"seconds": 1})
    with pytest.raises(ValueError, match="JSON"):
        write_record(path, {"seconds": float("nan")})
    assert read_record(path) == {"seconds": 1}


@pytest.mark.parametrize("content", ["", "{", "[1]", None])
def test_a_file_that_is_no_record_is_told_of_in_one_line(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "run.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(DataError, match=r"run\.json is not a record") as caught:
        read_record(path)
    assert "\n" not in str(caught.value)
