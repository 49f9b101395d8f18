"""The layers that a density could look at, side by side, from the records of a hunt."""

from pathlib import Path

from besnn.evaluation.comparison import Row
from besnn.evaluation.tables import Table
from besnn.experiments.hunt import hunt_records, mean_auroc
from besnn.experiments.layers import CANDIDATES, COMBINED_LAYERS, score_name


def layer_table(results: Path, in_name: str, backbone: str) -> Table:
    """A row a setting of the hunt: nearest neighbours at each layer, and all of them combined with the paper's score."""
    layers = CANDIDATES[backbone]
    names = [*map(score_name, layers), COMBINED_LAYERS]
    rows = [
        Row((fields["variant"], *(f"{mean_auroc(fields, name):.4f}" for name in names)))
        for fields in hunt_records(results, in_name)
        if COMBINED_LAYERS in fields["made_up"]
    ]
    note = (
        "Nearest neighbours among the features of one layer, a map averaged over its places, or of several (with a +), maps "
        "averaged over a 2 × 2 grid; last, all of them and tempered entropy combined. Mean AUROC over the kinds of made-up "
        "outliers, one seed."
    )
    return Table(f"Layers on {in_name}", ("Setting", *layers, "All, combined"), 1, rows, note)
