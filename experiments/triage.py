"""Triage from end to end: a detector that has never seen two classes finds them, and goes on with them once they are named.

The inbox is a sixth of the official training set, all ten classes, that the detector has not been trained on. The official test
set judges it before and after. The true classes play the part of a person: a group is named after the class of most of its
inputs if that is a new one, and is a false alarm otherwise. In development, other classes are new, and another sixth judges.
"""

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.documents import Table
from besnn.data import Dataset, keep_classes, load
from besnn.detector import Detector
from besnn.recipe.reading import parse_recipe
from besnn.training import load_recipe, make_fabric
from besnn.training.fit import fit_detector
from besnn.training.record import model_fields, provenance, read_record, write_record
from besnn.training.start import recipe_to_go_on
from besnn.triage import Group, Triage, apply_names, find_groups
from besnn.triage.groups import FALSE_ALARM
from experiments.runs import Workspace

RECORD = "triage.json"
NEW_CLASSES = ("Trouser", "Bag")
SHARES = 6
"""Parts of the training set: one is the inbox, and in development another one judges."""


def run_triage(
    workspace: Workspace,
    overrides: Sequence[str],
    later: Sequence[str],
    say: Callable[[str], None],
    development: Sequence[str] = (),
) -> Path:
    """Train without two classes, group, name, apply, go on; write the record and return its path.

    `overrides` change the recipe of the first training, `later` that of the second; `development` are other new classes.
    """
    new = tuple(development) or NEW_CLASSES
    recipe = load_recipe("fashion-mnist", overrides)
    data = load("fashion-mnist", split="train", data_dir=workspace.data_dir)
    test = load("fashion-mnist", split="test", data_dir=workspace.data_dir)
    first, part, *rest = np.array_split(np.random.default_rng(recipe.training.seed).permutation(len(data)), SHARES)
    inbox, judge = data.subset(first[: recipe.data.limit]), data.subset(part) if development else test
    training = data.subset(np.concatenate(rest if development else [part, *rest]))
    training = keep_classes(training, set(data.class_names) - set(new))
    training = training.subset(np.arange(len(training))[: recipe.data.limit])
    fabric = make_fabric(recipe.training.precision, workspace.accelerator)
    start = fit_detector(recipe, training, fabric=fabric).detector
    before = figures_of(start, judge, new)
    say(f"before: {before}")
    found = find_groups(start, inbox.inputs, start.predict(inbox.inputs))
    named, groups = name_groups(found, inbox, new)
    say(f"groups: {groups}")
    with tempfile.TemporaryDirectory() as folder:
        paths = apply_names(named, Path(folder), inbox, training)
        going_on = parse_recipe(recipe_to_go_on(start, "triage").model_dump(mode="json"), later)
        detector = fit_detector(going_on, load(str(paths["training"])), start=start, fabric=fabric).detector
    after = figures_of(detector, judge, new)
    say(f"after: {after}")
    fields = {
        "experiment": "triage",
        "new_classes": list(new),
        "inbox": len(inbox),
        "groups": groups,
        "single": len(found.single),
        "before": before,
        "after": after,
        **model_fields(detector.model, detector.recipe),
        "seconds": {"first": start.provenance["seconds"], "second": detector.provenance["seconds"]},
        "provenance": provenance({**data.hashes, **test.hashes}, fabric.device),
    }
    path = workspace.results / (f"triage-{'-'.join(development).lower()}.json" if development else RECORD)
    write_record(path, fields)
    return path


def name_groups(found: Triage, inbox: Dataset, new: Sequence[str] = NEW_CLASSES) -> tuple[Triage, list[dict[str, Any]]]:
    """Name each group as a person would, by the class of most of its inputs; also return each group's size and purity."""
    assert inbox.labels is not None
    truth = np.asarray(inbox.class_names)[inbox.labels]
    named: dict[str, Group] = {}
    described: list[dict[str, Any]] = []
    for key, group in found.groups.items():
        names, counts = np.unique(truth[group.rows], return_counts=True)
        majority = str(names[counts.argmax()])
        named[key] = replace(group, name=majority if majority in new else FALSE_ALARM)
        own = {part: truth[rows] == majority for part, rows in (("", group.rows), ("similar_", group.similar))}
        described.append({"class": majority} | {f"{part}size": len(each) for part, each in own.items()})
        described[-1] |= {f"{part}purity": float(each.mean()) for part, each in own.items() if len(each)}
    return replace(found, groups=named), described


def figures_of(detector: Detector, test: Dataset, classes: Sequence[str]) -> dict[str, Any]:
    """Return the accuracy on old and on new classes, and the share of each new class that is flagged."""
    assert test.labels is not None
    truth, predictions = np.asarray(test.class_names)[test.labels], detector.predict(test.inputs)
    right, new = predictions.labels == truth, np.isin(truth, classes)
    return {
        "accuracy_of_old_classes": float(right[~new].mean()),
        "accuracy_of_new_classes": float(right[new].mean()),
        "flagged": {name: float(predictions.is_ood[truth == name].mean()) for name in classes},
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
    groups = "; ".join(map(_described, record["groups"]))
    note = f"Groups among {record['inbox']:,} images of all ten classes: {groups}. Flagged and in none: {record['single']}."
    return Table("Triage", header, rows, note)


def _described(group: dict[str, Any]) -> str:
    text = f"{group['size']} inputs ({100 * group['purity']:.1f} % {group['class']})"
    if not group.get("similar_size"):
        return text
    return f"{text} and {group['similar_size']} that resemble them ({100 * group['similar_purity']:.1f} %)"
