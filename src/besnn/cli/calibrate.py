"""`besnn calibrate`: gives a model a threshold with a stated false-alarm rate."""

from pathlib import Path
from typing import Annotated

import typer

from besnn.cli.inspect import facts_of, guarantee
from besnn.cli.options import Data, DataDir, Device, Json, Label, Model, Quiet
from besnn.cli.output import announce


def calibrate(
    model: Model,
    data: Data,
    alpha: Annotated[float, typer.Option(metavar="RATE", help="The share of known inputs that may be flagged.")] = 0.05,
    delta: Annotated[
        float | None,
        typer.Option(metavar="RATE", help="Hold alpha with probability 1 - delta over the draw of DATA. (default: on average)"),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="The model file to write. (default: MODEL)")
    ] = None,
    label: Label = None,
    data_dir: DataDir = None,
    device: Device = "auto",
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Set a model's threshold from held-out data of known classes.

    Labels are not needed. DATA must not have been used for training. At most a share ALPHA of inputs like those in DATA is
    then flagged.
    """
    from besnn.cli.loading import check_data, check_output, load_detector, load_known, require_model

    require_model(model)
    check_data(data, quiet=quiet)
    check_output("--output", output or model)
    detector = load_detector(model, device=device)
    dataset = load_known(detector, data, label=label, data_dir=data_dir)
    detector.calibrate(dataset.inputs, alpha, delta)
    detector.provenance["calibration_data"] = {"name": dataset.name, "data": dataset.hashes, "data_note": dataset.note}
    target = output or model
    detector.save(target)
    facts = facts_of(detector)
    announce({"model": str(target), **facts}, [f"{target}: {guarantee(facts['calibration'])}"], as_json=json, quiet=quiet)
