"""`besnn recipes`: the recipes that come with besnn, and what can stand in one."""

from typing import Annotated

import typer

from besnn.cli.options import Json


def recipes(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="Print this recipe, to start your own from.")] = None,
    reference: Annotated[bool, typer.Option("--reference", help="Print every setting of a recipe, as Markdown.")] = False,
    json: Json = False,
) -> None:
    """List the recipes that come with besnn, or print one (with --json: with all its defaults)."""
    from besnn.cli.output import announce
    from besnn.recipe.reading import recipe_text
    from besnn.training import load_recipe, shipped_recipes

    if reference:
        from besnn.cli.reference import recipe_reference

        typer.echo(recipe_reference(), nl=False)
    elif name is not None:
        announce(load_recipe(name).model_dump(mode="json"), recipe_text(name).rstrip().splitlines(), as_json=json, quiet=False)
    else:
        about = {each: _purpose(recipe_text(each)) for each in shipped_recipes()}
        announce(about, [f"{each:<14} {purpose}" for each, purpose in about.items()], as_json=json, quiet=False)


def _purpose(text: str) -> str:
    """What a recipe's first comment says of it."""
    first = text.split("\n", 1)[0]
    return first.removeprefix("#").strip() if first.startswith("#") else ""
