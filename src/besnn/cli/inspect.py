"""`besnn inspect`: what a model file holds."""

import os

from besnn.cli.options import Json, Model


def inspect(model: Model, json: Json = False) -> None:
    """Show what a model file holds: method, classes, inputs, calibration, recipe and where it comes from."""
    from besnn.cli.description import facts_of, in_words
    from besnn.cli.loading import load_detector
    from besnn.cli.output import announce

    detector = load_detector(model)
    recipe = None if detector.recipe is None else detector.recipe.model_dump(mode="json")
    facts = {"file": str(model), "bytes": os.path.getsize(model), **facts_of(detector)}
    facts |= {"recipe": recipe, "provenance": detector.provenance}
    origin = detector.provenance
    sentences = [
        f"{model} ({facts['bytes']:,} bytes)",
        *in_words(facts),
        f"recipe       {'none: a network of its own' if recipe is None else recipe['name']}",
        f"data         {', '.join(origin.get('data', {})) or 'not recorded'}",
        f"trained      {origin.get('date', 'not recorded')}, besnn {origin.get('versions', {}).get('besnn', 'not recorded')}, "
        f"commit {origin.get('commit') or 'not recorded'}",
    ]
    announce(facts, sentences, as_json=json, quiet=False)
