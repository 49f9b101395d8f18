"""`python -m experiments`: the paper's tables and figures, and what goes beyond them."""

import sys
from collections.abc import Callable, Sequence
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from besnn.cli.options import DataDir, Device, Quiet
from besnn.cli.output import exit_code_of

if TYPE_CHECKING:
    from experiments.runner import Measure
    from experiments.runs import Run, Workspace

app = typer.Typer(
    name="experiments",
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    help="Run the paper's experiments again, and make its tables and figures.",
)


class InName(StrEnum):
    """The sets that the paper trains on."""

    FASHION_MNIST = "fashion-mnist"
    CIFAR10 = "cifar10"


In = Annotated[InName, typer.Option("--in", help="What to train on.")]
Seeds = Annotated[int, typer.Option(help="How many seeds, from 0 on.", min=1)]
Only = Annotated[
    list[str] | None, typer.Option("--only", metavar="WORD", help="Only runs whose names contain this word; repeatable.")
]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="FIELD=VALUE", help="Change a setting in all recipes, such as training.epochs=1; repeatable."
    ),
]
Workers = Annotated[int, typer.Option(help="How many runs share the device at a time.", min=1)]
TimeLimit = Annotated[
    float | None,
    typer.Option(metavar="SECONDS", help="Stop after this time; the same command continues.", show_default=False),
]
Results = Annotated[Path, typer.Option(metavar="FOLDER", help="Where records are.")]
KeepWeights = Annotated[bool, typer.Option("--keep-weights", help="Keep each trained network in results/weights.")]
Rounds = Annotated[int, typer.Option(help="Scoring passes of each method.", min=2)]

RESULTS = Path("results")


@app.callback(invoke_without_command=True)
def _show_help(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command()
def table1(
    in_name: In = InName.FASHION_MNIST,
    all_methods: Annotated[bool, typer.Option("--all", help="Also the deep ensemble and BatchEnsemble.")] = False,
    seeds: Seeds = 5,
    only: Only = None,
    overrides: Set = None,
    workers: Workers = 1,
    time_limit: TimeLimit = None,
    data_dir: DataDir = None,
    results: Results = RESULTS,
    device: Device = "auto",
    keep_weights: KeepWeights = False,
    quiet: Quiet = False,
) -> None:
    """Train the paper's methods and score them on the OOD sets: accuracy, FPR95, AUROC, AUPR."""
    from experiments.detection import measure_detection
    from experiments.suites import FURTHER_METHODS, PAPER_METHODS, table1_runs

    methods = (*PAPER_METHODS, *FURTHER_METHODS) if all_methods else PAPER_METHODS
    runs = table1_runs(in_name.value, range(seeds), overrides or (), methods)
    workspace = _workspace(results, data_dir, device, keep_weights)
    _run(runs, measure_detection, workspace, only, workers, time_limit, quiet)


def _add_suite(name: str, in_default: InName, summary: str) -> None:
    """Add the command of an experiment that is a list of training runs."""

    def command(
        in_name: In = in_default,
        seeds: Seeds = 5,
        only: Only = None,
        overrides: Set = None,
        workers: Workers = 1,
        time_limit: TimeLimit = None,
        data_dir: DataDir = None,
        results: Results = RESULTS,
        device: Device = "auto",
        keep_weights: KeepWeights = False,
        quiet: Quiet = False,
    ) -> None:
        runs, measure = _suite(name, in_name.value, range(seeds), overrides or ())
        _run(runs, measure, _workspace(results, data_dir, device, keep_weights), only, workers, time_limit, quiet)

    app.command(name, help=summary)(command)


def _suite(name: str, in_name: str, seeds: Sequence[int], overrides: Sequence[str]) -> "tuple[list[Run], Measure]":
    from experiments.conversion import CONVERSION, conversion_runs, measure_conversion
    from experiments.decisions import DECISIONS, decision_runs, measure_decisions
    from experiments.detection import measure_detection
    from experiments.suites import SUITES
    from experiments.wrapped import WRAPPED, measure_wrapped, wrapped_runs

    if name == DECISIONS:
        return decision_runs(in_name, seeds, overrides), measure_decisions
    if name == WRAPPED:
        return wrapped_runs(in_name, seeds, overrides), measure_wrapped
    if name == CONVERSION:
        return conversion_runs(in_name, seeds, overrides), partial(measure_conversion, overrides=overrides)
    return SUITES[name](in_name, seeds, overrides), measure_detection


for _name, _in_default, _summary in (
    ("table3", InName.FASHION_MNIST, "Train BE-SNNs of 1, 2, 4 and 8 members, batch times members constant."),
    ("ablations", InName.FASHION_MNIST, "Train BE-SNNs with other gradient penalties, entropy terms, and no mirror images."),
    ("baselines", InName.FASHION_MNIST, "Train baselines with other settings, to see why they differ from the paper's."),
    ("near-ood", InName.CIFAR10, "Train every method on six classes and measure whether it detects the other four."),
    ("wrapped", InName.CIFAR10, "Train a plain softmax network, wrap it, and measure every score and what it costs."),
    (
        "decisions",
        InName.FASHION_MNIST,
        "Train methods, calibrate them with labels, and measure what their decisions are worth.",
    ),
    ("conversion", InName.CIFAR10, "Train a plain softmax network, convert it in a few epochs, and compare the two."),
):
    _add_suite(_name, _in_default, _summary)


@app.command()
def table2(
    in_name: In = InName.FASHION_MNIST,
    overrides: Set = None,
    rounds: Rounds = 50,
    results: Results = RESULTS,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Count parameters and time one forward pass of 500 images of every method; nothing is trained."""
    from experiments.cost import time_methods
    from experiments.suites import FURTHER_METHODS, PAPER_METHODS

    methods = (*PAPER_METHODS, *FURTHER_METHODS)
    workspace = _workspace(results, None, device)
    for run in time_methods(in_name.value, methods, workspace, overrides=overrides or (), rounds=rounds):
        _say(quiet)(f"wrote {workspace.record(run)}")


@app.command()
def cost(
    in_name: In = InName.CIFAR10,
    overrides: Set = None,
    steps: Annotated[int, typer.Option(help="Training steps to time of each method.", min=1)] = 48,
    rounds: Rounds = 50,
    data_dir: DataDir = None,
    results: Results = RESULTS,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Measure time and memory to train and to score 500 images, of every method in one run."""
    from experiments.cost import measure_cost
    from experiments.suites import FURTHER_METHODS, PAPER_METHODS

    methods, workspace = (*PAPER_METHODS, *FURTHER_METHODS), _workspace(results, data_dir, device)
    measure_cost(in_name.value, methods, workspace, overrides=overrides or (), steps=steps, rounds=rounds, say=_say(quiet))


@app.command()
def hunt(
    in_name: In = InName.FASHION_MNIST,
    only: Only = None,
    overrides: Set = None,
    workers: Workers = 1,
    time_limit: TimeLimit = None,
    data_dir: DataDir = None,
    results: Results = RESULTS,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Try the settings that the recipe was chosen from, judged only on held-out data and made-up outliers."""
    from experiments.hunt import hunt_runs, measure_hunt

    runs = hunt_runs(in_name.value, overrides or ())
    _run(runs, measure_hunt, _workspace(results, data_dir, device), only, workers, time_limit, quiet)


@app.command()
def members(
    only: Only = None,
    overrides: Set = None,
    data_dir: DataDir = None,
    results: Results = RESULTS,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Try fast weights of rank 2, and keeping the best 4 of 16 members, judged as in the hunt."""
    from experiments.member_trials import member_runs, run_trials
    from experiments.runs import select

    run_trials(select(member_runs(overrides or ()), only or ()), _workspace(results, data_dir, device), _say(quiet))


@app.command()
def figure1(
    picture: Annotated[Path, typer.Option("--output", "-o", help="The picture: .png, .svg or .pdf.")] = Path(
        "docs/figures/figure1.png"
    ),
    seeds: Seeds = 5,
    overrides: Set = None,
    workers: Workers = 1,
    time_limit: TimeLimit = None,
    results: Results = RESULTS,
    device: Device = "cpu",
    quiet: Quiet = False,
) -> None:
    """Draw the confidence of four methods around Two Moons, and measure it."""
    from experiments.figure1 import PANELS, draw_figure1, figure1_runs, measure_confidence

    runs, workspace = figure1_runs(range(seeds), overrides or ()), _workspace(results, None, device)
    _run(runs, measure_confidence, workspace, None, workers, time_limit, quiet)
    _say(quiet)(f"wrote {draw_figure1(runs[: len(PANELS)], workspace, picture)}")


@app.command()
def detector(
    in_name: In = InName.FASHION_MNIST,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="The model file to write. (default: models/NAME.safetensors)", show_default=False),
    ] = None,
    overrides: Set = None,
    data_dir: DataDir = None,
    results: Results = RESULTS,
    quiet: Quiet = False,
) -> None:
    """Make a detector that is in models/, from the kept weights of a BE-SNN of Table 1, and check it against its record."""
    from besnn.detector import Detector
    from experiments.detector import MODELS, SHIPPED, check, compare, make_detector, write_comparisons
    from experiments.suites import table1_runs

    shipped = SHIPPED[in_name.value]
    runs = table1_runs(in_name.value, [0], overrides or (), methods=["be-snn"])
    run = next(run for run in runs if run.variant == shipped.variant)
    workspace, say = _workspace(results, data_dir, "cpu"), _say(quiet)
    path = output or MODELS / f"{in_name.value}.safetensors"
    content = make_detector(run, workspace, changes=shipped.score).to_bytes(shipped.half)
    comparisons = []
    for each in compare(Detector.from_bytes(content), run, workspace, shipped.images):
        say(f"{each.name}: {each.found:.4f}" + ("" if each.recorded is None else f" (recorded {each.recorded:.4f})"))
        comparisons.append(each)
    check(comparisons)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    say(f"wrote {write_comparisons(comparisons, run, workspace, shipped.images)}")
    say(f"wrote {path}")


@app.command()
def triage(
    overrides: Set = None,
    later: Annotated[
        list[str] | None,
        typer.Option("--later", metavar="FIELD=VALUE", help="Change a setting of the training that goes on; repeatable."),
    ] = None,
    development: Annotated[
        list[str] | None,
        typer.Option("--development", metavar="CLASS", help="Other new classes, judged on training images; repeatable."),
    ] = None,
    data_dir: DataDir = None,
    results: Results = RESULTS,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Train on eight classes of FashionMNIST, find the other two among flagged images, name them, and go on."""
    from experiments.triage import run_triage

    say = _say(quiet)
    path = run_triage(_workspace(results, data_dir, device), overrides or (), later or (), say, development or ())
    say(f"wrote {path}")


@app.command()
def tables(
    documents: Annotated[
        list[Path] | None,
        typer.Option("--into", metavar="FILE", help="A Markdown file with marked places for tables; repeatable."),
    ] = None,
    results: Results = RESULTS,
    quiet: Quiet = False,
) -> None:
    """Make the tables from the records, in the documents that have places for them."""
    from benchmarks.documents import update_documents
    from experiments.tables import DOCUMENTS, result_tables

    documents = documents or [path for path in map(Path, DOCUMENTS) if path.exists()]
    update_documents(documents, result_tables(results))
    for path in documents:
        _say(quiet)(f"wrote {path}")


def _run(
    runs: "Sequence[Run]",
    measure: "Measure",
    workspace: "Workspace",
    only: Sequence[str] | None,
    workers: int,
    time_limit: float | None,
    quiet: bool,
) -> None:
    from experiments.runner import run_all
    from experiments.runs import select

    run_all(select(runs, only or ()), measure, workspace, workers=workers, time_limit=time_limit, say=_say(quiet))


def _workspace(results: Path, data_dir: Path | None, device: str, keep_weights: bool = False) -> "Workspace":
    from experiments.runs import Workspace

    return Workspace(results, data_dir, device, keep_weights)


def _say(quiet: bool) -> Callable[[str], None]:
    return (lambda text: None) if quiet else typer.echo


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; arguments are the process's own unless given."""
    return exit_code_of(lambda: app(arguments, prog_name="python -m experiments", standalone_mode=False))


if __name__ == "__main__":
    sys.exit(run())
