"""The layers that a density could look at, side by side, from the records of a hunt."""

from pathlib import Path
from typing import Any

from besnn.detection.score_set import COMBINED
from besnn.model.feature_layers import layer_groups
from experiments.comparison import Row
from experiments.hunt import hunt_records, shown_auroc
from experiments.layers import CANDIDATES, COMBINED_LAYERS, score_name
from experiments.rendering import Table


def layer_table(results: Path, in_name: str, backbone: str) -> Table:
    """One row per setting: nearest neighbours at each layer, and several of them combined with the paper's score.

    Where settings were repeated, only those with the most seeds are shown.
    """
    layers = CANDIDATES[backbone]
    names = [*map(score_name, layers), COMBINED_LAYERS]
    by_setting: dict[str, list[dict[str, Any]]] = {}
    for fields in hunt_records(results, in_name):
        if COMBINED_LAYERS in fields["made_up"]:
            by_setting.setdefault(fields["variant"], []).append(fields)
    most = max(map(len, by_setting.values()), default=0)
    repeated = {variant: seeds for variant, seeds in by_setting.items() if len(seeds) == most}
    records = [seeds[0] for seeds in repeated.values()]
    rows = [Row((variant, *(shown_auroc(seeds, name) for name in names))) for variant, seeds in repeated.items()]
    header = ("Setting", *layers, "All, combined")
    note = (
        "Nearest neighbours among the features of one layer, a map averaged over its places, or of several (with a +), maps "
        "averaged over a 2 × 2 grid; {}. Mean AUROC over the kinds of made-up outliers."
    )
    together = "last, all of them and tempered entropy combined"
    if any(_sets_layers_apart(fields) for fields in records):
        together = "then all of them and tempered entropy combined; last, only those that a setting sets apart"
        header = (*header, "Its own, combined")
        rows = [Row((*row.cells, _of_its_own(fields))) for row, fields in zip(rows, records, strict=True)]
    return Table(f"Layers on {in_name}", header, 1, rows, note.format(together))


def _sets_layers_apart(fields: dict[str, Any]) -> bool:
    return len(layer_groups(fields["recipe"]["score"]["layer"])) > 1


def _of_its_own(fields: dict[str, Any]) -> str:
    """Of a setting that looks at several layers apart: what they and the paper's score give together."""
    layer = fields["recipe"]["score"]["layer"]
    return f"{shown_auroc([fields], COMBINED)} ({layer})" if _sets_layers_apart(fields) else "—"
