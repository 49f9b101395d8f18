"""`besnn score`: what a model says about every input of a source."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from besnn.cli.options import (
    DATA_HELP,
    Address,
    DataDir,
    Device,
    Engine,
    Json,
    Label,
    Model,
    Quiet,
    Where,
    check_engine,
    complete_data,
    option,
)
from besnn.cli.output import announce, count, counting_progress, note

if TYPE_CHECKING:
    from besnn.batch import Tally
    from besnn.detector import Detector


def score(
    model: Model,
    source: Annotated[
        str,
        typer.Argument(
            metavar="INPUT",
            help=f"What to score: {DATA_HELP}, or one image; on Ray also a URL, such as s3://bucket/folder.",
            autocompletion=complete_data,
        ),
    ],
    output: Annotated[str, option("PATH", "A .parquet, .csv or .jsonl; on Ray, a folder or its URL.", "--output", "-o")],
    engine: Where = Engine.LOCAL,
    address: Address = None,
    workers: Annotated[int | None, option("N", "Processes on Ray. (default: one per core or GPU)", min=1)] = None,
    gpus_per_worker: Annotated[float | None, option("N", "GPUs per process, such as 0.5. (default: 0)", min=0)] = None,
    fdr: Annotated[
        float | None, option("RATE", "Flag so that on average at most this share of all flags is false. (default: alpha)")
    ] = None,
    explain: Annotated[
        Path | None, option("FILE", "Write a page that says why inputs are not known, as one HTML file. (default: none)")
    ] = None,
    label: Label = None,
    data_dir: DataDir = None,
    device: Device = "auto",
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Say which class each input is, and whether it is unknown.

    The output has one row per input, in order: input, label, probability, score, p_value, is_ood, error, decision (known,
    unsure or unknown), label_set. Inputs are streamed, so there may be any number of them. An input that cannot be scored gets
    a row that says why.
    """
    from besnn.batch import require_table_path, score_file
    from besnn.cli.loading import check_data, check_output, check_page, label_of, load_detector, require_model
    from besnn.data.sources import count_inputs
    from besnn.errors import InputError

    ray_options = {"--address": address, "--workers": workers, "--gpus-per-worker": gpus_per_worker}
    check_engine(engine, "data", device, ray_options)
    for name, given in {"--fdr": fdr, "--explain": explain}.items():
        if given is not None and engine is Engine.RAY:
            raise InputError(f"{name} needs all inputs in one process: leave out --engine ray")
    if explain is not None:
        check_page("--explain", explain, source, model, output)
    if fdr is not None and not 0 < fdr < 1:
        raise InputError(f"--fdr {fdr:g} is not a share: choose it between 0 and 1, such as 0.1")
    if engine is Engine.LOCAL:
        require_table_path(Path(output))
        check_data(source, quiet=quiet)
        check_output("--output", output, source, model)
    require_model(model)
    detector = load_detector(model, calibrated=True, device=device if engine is Engine.LOCAL else "cpu")
    label = label or label_of(detector)
    total = count_inputs(source) if engine is Engine.LOCAL else None
    with counting_progress(quiet, total) as progress:
        if engine is Engine.LOCAL:
            tally = score_file(detector, source, Path(output), label=label, data_dir=data_dir, progress=progress, fdr=fdr)
        else:
            from besnn.ray.scoring import score_on_ray
            from besnn.ray.session import Cluster

            cluster = Cluster(address, workers, gpus_per_worker or 0.0)
            tally = score_on_ray(model, source, output, label=label, data_dir=data_dir, cluster=cluster, progress=progress)
    if explain is not None:
        _explain(detector, source, label, data_dir, explain, quiet)
    _report(tally, output, json, quiet)


def _explain(
    detector: "Detector", source: str, label: str, data_dir: Path | None, path: Path, quiet: bool, most: int = 30
) -> None:
    """Write a page about the strangest inputs that are unsure or unknown."""
    from besnn.batch import strangest_inputs
    from besnn.evaluation.explained import write_explanations

    names, inputs, total = strangest_inputs(detector, source, most, label=label, data_dir=data_dir)
    explained = detector.explained(inputs, names)
    write_explanations(explained, path, f"Why: {source}", more=total - len(names))
    note(f"wrote {path}", quiet=quiet)


def _report(tally: "Tally", output: str, json: bool, quiet: bool) -> None:
    """Print the counts; fail if no input could be scored."""
    from besnn.errors import BesnnError

    facts = {"output": output, **{name: getattr(tally, name) for name in ("inputs", "flagged", "unsure", "failed")}}
    unsure = f", {tally.unsure:,} with an unsure label" if tally.unsure else ""
    sentences = [f"{output}: {count(tally.inputs, 'input')}, {tally.flagged:,} flagged as out-of-distribution{unsure}"]
    if tally.failed:
        sentences.append(f"{tally.failed:,} could not be scored (see the column 'error'); the first: {tally.first_error}")
    announce(facts, sentences, as_json=json, quiet=quiet)
    if tally.inputs and tally.failed == tally.inputs:
        raise BesnnError(f"none of {count(tally.inputs, 'input')} could be scored; the first: {tally.first_error}")
