"""`besnn triage`: groups what was flagged, and makes the next training data of the groups that were named."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from besnn.cli.options import DATA_HELP, DataDir, Device, Json, Label, Model, Quiet, complete_data, option
from besnn.cli.output import announce, command_line, count

if TYPE_CHECKING:
    from besnn.data import Dataset
    from besnn.detector import Detector


def triage(
    model: Model,
    source: Annotated[
        str, typer.Argument(metavar="INPUTS", help=f"What was scored: {DATA_HELP}.", autocompletion=complete_data)
    ],
    output: Annotated[Path, option("FOLDER", "The folder of the groups.", "--output", "-o")],
    apply: Annotated[
        bool, typer.Option("--apply", help="Write training and calibration data from the groups that were named.")
    ] = False,
    training: Annotated[
        str | None,
        typer.Option(
            "--data",
            metavar="DATA",
            help="With --apply, the data to add the new classes to. (default: what the model was trained on)",
        ),
    ] = None,
    smallest: Annotated[int, option("N", "The smallest group.", min=2)] = 10,
    label: Label = None,
    data_dir: DataDir = None,
    device: Device = "auto",
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Group the inputs that a model calls unknown, and act on them.

    FOLDER then holds a page to look at and a file to name the groups in. A group is a class, new or known, a false alarm, or
    junk. With --apply the named groups join the training data, and besnn train --from continues from the model.
    """
    from besnn.cli.loading import check_data, label_of, load_detector, load_inputs, require_model

    require_model(model)
    check_data(source, *([training] if training else []), quiet=quiet)
    detector = load_detector(model, calibrated=True, device=device)
    inputs = load_inputs(detector, source, label=label, data_dir=data_dir)
    if not apply:
        _group(detector, model, source, inputs, output, smallest, json, quiet)
        return
    from besnn.triage import Triage, apply_names

    known = _training_data(detector, training, data_dir)
    found = Triage.load(output)
    paths = apply_names(found, output, inputs, known, label or label_of(detector))
    new = [name for name in found.classes if name not in detector.class_names]
    facts = {"classes": found.classes, "new_classes": new, **{part: str(path) for part, path in paths.items()}}
    train = command_line("besnn", "train", paths["training"], "--from", model, "-o", "new.safetensors")
    sentences = [
        f"{paths['training']}: the training data with {', '.join(found.classes) or 'no new class'}",
        f"{paths['calibration']}: inputs to set the threshold again with (besnn calibrate)",
        f"then run `{train}`",
    ]
    announce(facts, sentences, as_json=json, quiet=quiet)


def _group(
    detector: "Detector",
    model: Path,
    source: str,
    inputs: "Dataset",
    output: Path,
    smallest: int,
    json: bool,
    quiet: bool,
) -> None:
    from besnn.cli.loading import input_names
    from besnn.triage import find_groups, write_page

    names = input_names(detector, source) or [f"row {row}" for row in range(len(inputs))]
    found = find_groups(detector, inputs.inputs, detector.predict(inputs.inputs), smallest)
    found.save(output, names)
    page = write_page(found, output, inputs, names, detector.class_names)
    flagged = len(found.single) + sum(len(group.rows) for group in found.groups.values())
    groups = {
        key: {"size": len(each.rows), "similar": len(each.similar), "nearest_class": each.nearest_class}
        for key, each in found.groups.items()
    }
    listed = (
        f"  {key}: {count(len(each.rows), 'input')}, nearest to {each.nearest_class}; {len(each.similar):,} more resemble them"
        for key, each in found.groups.items()
    )
    facts = {"folder": str(output), "inputs": len(inputs), "flagged": flagged, "single": len(found.single), "groups": groups}
    again = command_line("besnn", "triage", model, source, "-o", output, "--apply")
    sentences = [
        f"{flagged:,} of {count(len(inputs), 'input')} flagged: {count(len(groups), 'group')}, {len(found.single):,} in none",
        *listed,
        f"look at {page}, name the groups there or in {output / 'groups.yaml'}, then run `{again}`",
    ]
    announce(facts, sentences, as_json=json, quiet=quiet)


def _training_data(detector: "Detector", source: str | None, data_dir: Path | None) -> "Dataset":
    """Load what a model was trained on, or other data to add classes to, in the form that the model takes."""
    from besnn.cli.loading import label_of, load_for
    from besnn.data import keep_classes
    from besnn.errors import InputError

    spec = detector.recipe.data.source if source is None and detector.recipe is not None else source
    if spec is None:
        raise InputError("the model does not say what it was trained on: give its training data with --data")
    data = load_for(detector, spec, "train", label_of(detector), data_dir)
    return keep_classes(data, detector.class_names) if set(data.class_names) - set(detector.class_names) else data
