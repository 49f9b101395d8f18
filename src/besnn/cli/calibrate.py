"""`besnn calibrate`: gives a model a threshold with a stated false-alarm rate."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from besnn.cli.inspect import facts_of, guarantee, labels_in_words
from besnn.cli.options import Alpha, Data, DataDir, Delta, Device, Json, Label, Model, Quiet, option
from besnn.cli.output import announce


class LabelSets(StrEnum):
    """The forms of label sets."""

    LEAST_AMBIGUOUS = "least-ambiguous"
    ADAPTIVE = "adaptive"


def calibrate(
    model: Model,
    data: Data,
    alpha: Alpha = 0.05,
    delta: Delta = None,
    per_class: Annotated[
        bool, typer.Option("--per-class", help="Keep every promise for the inputs of each predicted class.")
    ] = False,
    label_alpha: Annotated[
        float | None,
        option(
            "RATE",
            "The share of accepted inputs whose label set may miss their class. (default: 0.05 if DATA is enough for it)",
        ),
    ] = None,
    label_sets: Annotated[
        LabelSets, typer.Option(help="The smallest label sets, or larger ones for harder inputs.")
    ] = LabelSets.LEAST_AMBIGUOUS,
    max_error: Annotated[
        float | None,
        option(
            "RATE", "Be sure of as many labels as possible, with at most this share wrong. (default: not promised; delta: 0.1)"
        ),
    ] = None,
    output: Annotated[Path | None, option("FILE", "The model file to write. (default: MODEL)", "--output", "-o")] = None,
    label: Label = None,
    data_dir: DataDir = None,
    device: Device = "auto",
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Set a model's threshold from held-out data of known classes.

    DATA must not have been used for training. At most a share ALPHA of inputs like those in DATA is then flagged as unknown. If
    DATA has labels, probabilities are scaled to be right as often as they say, and accepted inputs whose class is not clear are
    called unsure: those with more than one label, or those that would make more than MAX_ERROR of the labels wrong.
    """
    from besnn.cli.loading import check_data, check_output, load_detector, load_known, require_model

    target = output or model
    require_model(model)
    check_data(data, quiet=quiet)
    check_output("--output", target)
    detector = load_detector(model, device=device)
    dataset = load_known(detector, data, label=label, data_dir=data_dir)
    detector.calibrate(
        dataset.inputs,
        alpha,
        delta,
        labels=dataset.labels,
        per_class=per_class,
        label_alpha=label_alpha,
        label_sets=label_sets.value,
        max_error=max_error,
    )
    detector.provenance["calibration_data"] = {"name": dataset.name, "data": dataset.hashes, "data_note": dataset.note}
    detector.save(target)
    facts = facts_of(detector)
    announce(
        {"model": str(target), **facts},
        [f"{target}: {guarantee(facts['calibration'])}", *labels_in_words(facts["calibration"])],
        as_json=json,
        quiet=quiet,
    )
