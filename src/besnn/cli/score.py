"""`besnn score`: what a model says of every input of a source."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from besnn.cli.options import DATA_HELP, DataDir, Json, Label, Model, Quiet, complete_data


class Engine(StrEnum):
    """What does the work."""

    LOCAL = "local"
    RAY = "ray"


def score(
    model: Model,
    source: Annotated[
        str,
        typer.Argument(
            metavar="INPUT", help=f"What to score: {DATA_HELP}, or one image.", autocompletion=complete_data, show_default=False
        ),
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="The file to write: .parquet, .csv or .jsonl.", show_default=False)
    ],
    engine: Annotated[Engine, typer.Option(help="Where to run: in this process, or on a Ray cluster.")] = Engine.LOCAL,
    label: Label = None,
    data_dir: DataDir = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Score every input into a file, one row each, in order: input, label, probability, score, p_value, is_ood, error.

    Inputs are streamed, so their number does not matter. One that cannot be scored gets a row that says why.
    """
    from besnn.cli.description import count
    from besnn.cli.loading import kind_of_data, label_of, load_detector
    from besnn.cli.output import announce, counting_progress
    from besnn.deployment.batch import score_file
    from besnn.deployment.writers import require_table_path
    from besnn.errors import BesnnError, InputError

    if engine is Engine.RAY:
        raise InputError("--engine ray is not part of this version: use --engine local")
    require_table_path(output)
    kind_of_data(source)
    detector = load_detector(model, calibrated=True)
    with counting_progress(quiet) as progress:
        tally = score_file(detector, source, output, label=label or label_of(detector), data_dir=data_dir, progress=progress)
    facts = {"output": str(output), "inputs": tally.inputs, "flagged": tally.flagged, "failed": tally.failed}
    sentences = [f"{output}: {count(tally.inputs, 'input')}, {tally.flagged:,} flagged as out-of-distribution"]
    if tally.failed:
        sentences.append(f"{tally.failed:,} could not be scored (see the column 'error'); the first: {tally.first_error}")
    announce(facts, sentences, as_json=json, quiet=quiet)
    if tally.inputs and tally.failed == tally.inputs:
        raise BesnnError(f"none of {count(tally.inputs, 'input')} could be scored; the first: {tally.first_error}")
