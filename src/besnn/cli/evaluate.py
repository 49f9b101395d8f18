"""`besnn evaluate`: how well a model classifies known data and flags unknown data."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from besnn.cli.options import DATA_HELP, DataDir, Device, Label, Model, Quiet, complete_data, option
from besnn.cli.output import announce, counting_progress, note

if TYPE_CHECKING:
    from besnn.detector import Detector
    from besnn.evaluation import Evaluation

STANDARD_OUTPUT = Path("-")


def evaluate(
    model: Model,
    known: Annotated[str, option("DATA", f"Labelled known data: {DATA_HELP}.", "--in", autocompletion=complete_data)],
    unknown: Annotated[
        list[str], option("DATA", "Data that should be flagged; repeatable.", "--out", autocompletion=complete_data)
    ],
    more_unknown: Annotated[list[str] | None, typer.Argument(metavar="[DATA ...]", help="More sets for --out.")] = None,
    json: Annotated[Path | None, option("FILE", "Write all figures as JSON; - for standard output.", "--json")] = None,
    report: Annotated[Path | None, option("FILE", "Write a report as one HTML file.", "--report")] = None,
    label: Label = None,
    data_dir: DataDir = None,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Measure a model on known data and on data that it should flag."""
    from besnn.cli.loading import check_data, check_output, check_page, load_detector, require_model

    require_model(model)
    specs = dict.fromkeys([*unknown, *(more_unknown or [])])
    check_data(known, *specs, quiet=quiet)
    if json is not None:
        check_output("--json", json, model, known, *specs)
    if report is not None:
        check_page("--report", report, model, known, *specs)
    from besnn.evaluation.explained import card
    from besnn.evaluation.report import write_report
    from besnn.training.record import write_record

    began = time.monotonic()
    detector = load_detector(model, calibrated=True, device=device)
    evaluation = _evaluate(detector, model, known, list(specs), label, data_dir, quiet)
    record = {} if json is None else _record(detector, evaluation, time.monotonic() - began)
    if report is not None:
        report.parent.mkdir(parents=True, exist_ok=True)
        write_report(evaluation, report, lambda inputs, names: [card(each) for each in detector.explained(inputs, names)])
        note(f"wrote {report}", quiet=quiet)
    if json is not None and json != STANDARD_OUTPUT:
        write_record(json, record)
        note(f"wrote {json}", quiet=quiet)
    announce(record, [*evaluation.summary(), *_separation(evaluation)], as_json=json == STANDARD_OUTPUT, quiet=quiet)


def _evaluate(
    detector: "Detector", model: Path, known: str, specs: list[str], label: str | None, data_dir: Path | None, quiet: bool
) -> "Evaluation":
    """Load the data, and evaluate with a bar that counts inputs."""
    from besnn.cli.loading import input_names, load_inputs, load_known, set_name
    from besnn.training.record import provenance

    labelled = load_known(detector, known, label=label, data_dir=data_dir)
    unknown = {set_name(spec): load_inputs(detector, spec, label=None, data_dir=data_dir) for spec in specs}
    with counting_progress(quiet, sum(map(len, [labelled, *unknown.values()]))) as progress:
        return detector.evaluate(
            labelled,
            unknown,
            title=model.stem,
            known_name=set_name(known),
            input_names={set_name(spec): names for spec in (known, *specs) if (names := input_names(detector, spec))},
            provenance=provenance({}, detector.device),
            progress=progress,
        )


def _record(detector: "Detector", evaluation: "Evaluation", seconds: float) -> dict[str, object]:
    """Return the figures under the field names of run records."""
    from besnn.training.record import model_fields

    fields = model_fields(detector.model, detector.recipe) | {"openood": _openood(evaluation)}
    return evaluation.metrics() | fields | {"seconds": round(seconds, 3), "provenance": evaluation.provenance}


def _openood(evaluation: "Evaluation") -> dict[str, dict[str, float]]:
    """Return the figures of the deciding score by OpenOOD's conventions, in percent, by unknown set."""
    from besnn.evaluation import openood_metrics

    score = evaluation.default_score
    accuracy = 100 * float((evaluation.known.predictions == evaluation.labels).mean())
    known = evaluation.known.scores[score]
    return {name: openood_metrics(known, each.scores[score]) | {"ACC": accuracy} for name, each in evaluation.unknown.items()}


def _separation(evaluation: "Evaluation") -> list[str]:
    """Return one line per unknown set: how well the deciding score separates it from the known data, at any threshold."""
    from besnn.evaluation import ood_metrics

    score = evaluation.default_score
    lines = []
    for name, answers in evaluation.unknown.items():
        figures = ood_metrics(evaluation.known.scores[score], answers.scores[score])
        fpr95 = f"FPR95 {figures['fpr95']:.4f} (share of unknown inputs accepted when 95 % of known ones are)"
        lines.append(f"{score} against {name}: AUROC {figures['auroc']:.4f}, {fpr95}")
    return lines
