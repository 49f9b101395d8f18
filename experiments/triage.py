"""Triage from end to end: a detector that has never seen two classes finds them, and goes on with them once they are named.

Half of the official test set, all ten classes, is the inbox; the other half judges the detector before and after. The true
classes play the part of a person: a group is named after the class of most of its inputs if that is a new one, and is a false
alarm otherwise.
"""

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.documents import Table
from besnn.data import Dataset, load
from besnn.detector import Detector
from besnn.recipe.reading import parse_recipe
from besnn.training import load_recipe, make_fabric
from besnn.training.fit import fit_detector
from besnn.training.record import model_fields, provenance, read_record, write_record
from besnn.training.start import recipe_to_go_on
from besnn.triage import Triage, apply_names, find_groups
from besnn.triage.groups import FALSE_ALARM
from experiments.runs import Workspace

RECORD = "triage.json"
NEW_CLASSES = ("Trouser", "Bag")


def run_triage(workspace: Workspace, overrides: Sequence[str], later: Sequence[str], say: Callable[[str], None]) -> Path:
    """Train without two classes, group, name, apply, go on; write the record and return its path.

    `overrides` change the recipe of the first training, `later` that of the second.
    """
    training = load("fashion-mnist", split="train", data_dir=workspace.data_dir)
    test = load("fashion-mnist", split="test", data_dir=workspace.data_dir)
    known = [name for name in training.class_names if name not in NEW_CLASSES]
    order = np.random.default_rng(0).permutation(len(test))
    inbox, judge = test.subset(order[: len(test) // 2]), test.subset(order[len(test) // 2 :])
    recipe = parse_recipe(load_recipe("fashion-mnist", overrides).model_dump(mode="json"), [f"data.classes={known}"])
    fabric = make_fabric(recipe.training.precision, workspace.accelerator)
    start = fit_detector(recipe, training, fabric=fabric).detector
    before = figures_of(start, judge)
    say(f"before: {before}")
    found = find_groups(start, inbox.inputs, start.predict(inbox.inputs))
    named, groups = name_groups(found, inbox)
    say(f"groups: {groups}")
    with tempfile.TemporaryDirectory() as folder:
        paths = apply_names(named, Path(folder), inbox, start_data(training, known, recipe.data.limit))
        more = load(str(paths["training"]))
        going_on = recipe_to_go_on(start, "triage")
        again = parse_recipe(going_on.model_dump(mode="json"), [*later])
        detector = fit_detector(again, more, start=start, fabric=fabric).detector
    after = figures_of(detector, judge)
    say(f"after: {after}")
    fields = {
        "experiment": "triage",
        "new_classes": list(NEW_CLASSES),
        "inbox": len(inbox),
        "groups": groups,
        "single": len(found.single),
        "before": before,
        "after": after,
        **model_fields(detector.model, detector.recipe),
        "seconds": {"first": start.provenance["seconds"], "second": detector.provenance["seconds"]},
        "provenance": provenance({**training.hashes, **test.hashes}, fabric.device),
    }
    path = workspace.results / RECORD
    write_record(path, fields)
    return path


def start_data(training: Dataset, known: Sequence[str], limit: int | None) -> Dataset:
    """Return the training data of the known classes, or so many of them."""
    assert training.labels is not None
    rows = np.flatnonzero(np.isin(np.asarray(training.class_names)[training.labels], known))
    return training.subset(np.sort(np.random.default_rng(0).permutation(rows)[:limit]))


def name_groups(found: Triage, inbox: Dataset) -> tuple[Triage, list[dict[str, Any]]]:
    """Name each group as a person would, by the class of most of its inputs; also return each group's size and purity."""
    assert inbox.labels is not None
    truth = np.asarray(inbox.class_names)[inbox.labels]
    named, described = {}, []
    for key, group in found.groups.items():
        names, counts = np.unique(truth[group.rows], return_counts=True)
        majority = str(names[counts.argmax()])
        named[key] = replace(group, name=majority if majority in NEW_CLASSES else FALSE_ALARM)
        described.append({"size": len(group.rows), "class": majority, "purity": float(counts.max() / counts.sum())})
    return replace(found, groups=named), described


def figures_of(detector: Detector, test: Dataset) -> dict[str, Any]:
    """Return the accuracy on old and on new classes, and the share of each new class that is flagged."""
    assert test.labels is not None
    truth, predictions = np.asarray(test.class_names)[test.labels], detector.predict(test.inputs)
    right, new = predictions.labels == truth, np.isin(truth, NEW_CLASSES)
    return {
        "accuracy_of_old_classes": float(right[~new].mean()),
        "accuracy_of_new_classes": float(right[new].mean()),
        "flagged": {name: float(predictions.is_ood[truth == name].mean()) for name in NEW_CLASSES},
        "false_alarms": float(predictions.is_ood[~new].mean()),
    }


def triage_table(results: Path) -> Table:
    """Return the figures of the record; no rows without it."""
    header = ("Detector", "Old classes right", "New classes right", *(f"{name} flagged" for name in NEW_CLASSES))
    if not (results / RECORD).exists():
        return Table("Triage", header, [], "")
    record = read_record(results / RECORD)
    rows = [
        (
            name,
            *(f"{100 * record[key][f'accuracy_of_{kind}_classes']:.1f} %" for kind in ("old", "new")),
            *(f"{100 * record[key]['flagged'][each]:.1f} %" for each in NEW_CLASSES),
        )
        for name, key in (("trained on eight classes", "before"), ("continued with the named groups", "after"))
    ]
    groups = ", ".join(f"{each['size']} inputs ({100 * each['purity']:.1f} % {each['class']})" for each in record["groups"])
    note = f"Groups among {record['inbox']:,} images of all ten classes: {groups}; {record['single']} flagged images in none."
    return Table("Triage", header, rows, note)
