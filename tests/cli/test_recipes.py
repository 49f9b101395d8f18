import json
from pathlib import Path

import pytest
import yaml

from besnn.cli.recipes import recipe_reference
from besnn.recipe import METHODS
from besnn.recipe.config import backbone_class
from besnn.training import Recipe, load_recipe, parse_recipe, shipped_recipes

DOCUMENT = Path(__file__).parents[2] / "docs" / "recipes.md"


def test_the_list_describes_every_recipe(besnn):
    outcome = besnn("recipes", "--json")
    about = json.loads(outcome.out)
    assert list(about) == shipped_recipes()
    assert all(about.values())
    assert {"two-moons", "digits", "table", "images"} <= set(about)
    assert len(besnn("recipes").out.splitlines()) == len(about)


@pytest.mark.parametrize("name", shipped_recipes())
def test_a_printed_recipe_is_the_recipe(besnn, name):
    printed = yaml.safe_load(besnn("recipes", name).out)
    assert parse_recipe(printed) == load_recipe(name)
    whole = json.loads(besnn("recipes", name, "--json").out)
    assert parse_recipe(whole) == load_recipe(name)


def test_the_reference_in_the_documentation_is_up_to_date(besnn):
    assert besnn("recipes", "--reference").out == recipe_reference()
    assert DOCUMENT.read_text(encoding="utf-8") == recipe_reference(), "run: besnn recipes --reference > docs/recipes.md"


def test_the_reference_has_every_setting_with_its_default():
    lines = recipe_reference().splitlines()
    settings = [line.split(" | ")[0].removeprefix("| ") for line in lines if line.startswith("| `")]

    def fields(schema, definitions):
        for name, value in schema.get("properties", {}).items():
            yield f"`{name}`"
            for reference in str(value).split("'#/$defs/")[1:]:
                yield from fields(definitions[reference.split("'")[0]], definitions)

    schemas = [section.model_json_schema() for section in (Recipe, backbone_class(), *METHODS.values())]
    assert set(settings) == {field for schema in schemas for field in fields(schema, schema.get("$defs", {}))}
    assert "| `learning_rate` | number > 0 | `0.03` | the highest of the run |" in lines
    assert any(line.startswith("| `delta` | number > 0 < 1 or null | `null` |") for line in lines)
    assert any(line.startswith("| `hidden` | list | `[128, 128]` |") for line in lines)
