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
    from experiments.execution import Measure
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
    list[str] | None, typer.Option("--only", metavar="WORD", help="Only runs whose names hold this word; repeatable.")
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
    typer.Option(metavar="SECONDS", help="Stop after so long; the same command goes on from there.", show_default=False),
]
Results = Annotated[Path, typer.Option(metavar="FOLDER", help="Where records are.")]
KeepWeights = Annotated[
    bool, typer.Option("--keep-weights", help="Leave each trained network in the results, without its densities.")
]
AllMethods = Annotated[bool, typer.Option("--all", help="The deep ensemble and BatchEnsemble too.")]

RESULTS = Path("results")
DOCUMENTS = ("README.md", "docs/reproduction.md", "docs/hunt-fashion-mnist.md", "docs/hunt-cifar10.md", "docs/convert.md")


@app.callback(invoke_without_command=True)
def _reproduce(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command()
def table1(
    in_name: In = InName.FASHION_MNIST,
    all_methods: AllMethods = False,
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
    """Train every method and score it on the OOD sets: accuracy, FPR95, AUROC, AUPR."""
    from experiments.detection import measure_detection
    from experiments.table1 import FURTHER_METHODS, PAPER_METHODS, table1_runs

    methods = (*PAPER_METHODS, *FURTHER_METHODS) if all_methods else PAPER_METHODS
    runs = table1_runs(in_name.value, range(seeds), overrides or (), methods)
    workspace = _workspace(results, data_dir, device, keep_weights)
    _run(runs, measure_detection, workspace, only, workers, time_limit, quiet)


@app.command()
def detector(
    output: Annotated[Path, typer.Option("--output", "-o", help="The model file to write.")],
    in_name: In = InName.FASHION_MNIST,
    overrides: Set = None,
    data_dir: DataDir = None,
    results: Results = RESULTS,
    quiet: Quiet = False,
) -> None:
    """Make Table 1's first BE-SNN a model file again, from its kept weights, and check it against its record."""
    from experiments.table1 import table1_runs
    from experiments.trained import check, compare, note_down, rebuild

    (run,) = table1_runs(in_name.value, [0], overrides or (), methods=["be-snn"])
    workspace, say = _workspace(results, data_dir, "cpu"), _say(quiet)
    rebuilt = rebuild(run, workspace)
    comparisons = []
    for each in compare(rebuilt, run, workspace):
        say(f"{each.name}: {each.found:.4f} (recorded {each.recorded:.4f})")
        comparisons.append(each)
    check(comparisons)
    rebuilt.save(output)
    say(f"wrote {note_down(comparisons, run, workspace)}")
    say(f"wrote {output}; give it a false-alarm rate with besnn calibrate {output} DATA --alpha 0.05")


@app.command()
def table2(
    in_name: In = InName.FASHION_MNIST,
    overrides: Set = None,
    rounds: Annotated[int, typer.Option(help="Passes of each method.", min=2)] = 50,
    results: Results = RESULTS,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Count parameters, and time one forward pass of 500 images of every method, all in one go; nothing is trained."""
    from experiments.table1 import FURTHER_METHODS, PAPER_METHODS
    from experiments.table2 import time_methods

    methods = (*PAPER_METHODS, *FURTHER_METHODS)
    workspace = _workspace(results, None, device)
    runs = time_methods(in_name.value, methods, workspace, overrides=overrides or (), rounds=rounds)
    for run in runs:
        _say(quiet)(f"wrote {workspace.record(run)}")


def _add_experiment(name: str, in_default: InName, summary: str) -> None:
    """Adds the command of an experiment that is a list of training runs and nothing else."""

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
        from experiments.ablations import ablation_runs
        from experiments.conversion import conversion_runs, measure_conversion
        from experiments.detection import measure_detection
        from experiments.near_ood import near_ood_runs
        from experiments.otherwise import otherwise_runs
        from experiments.table3 import table3_runs

        parts: dict[str, tuple[Callable[..., list[Run]], Measure]] = {
            "table3": (table3_runs, measure_detection),
            "ablations": (ablation_runs, measure_detection),
            "baselines": (otherwise_runs, measure_detection),
            "near-ood": (near_ood_runs, measure_detection),
            "conversion": (conversion_runs, partial(measure_conversion, overrides=overrides or ())),
        }
        make_runs, measure = parts[name]
        runs = make_runs(in_name.value, range(seeds), overrides or ())
        _run(runs, measure, _workspace(results, data_dir, device, keep_weights), only, workers, time_limit, quiet)

    app.command(name, help=summary)(command)


_add_experiment(
    "table3",
    InName.FASHION_MNIST,
    "Train BE-SNNs of 1, 2, 4 and 8 members, batch times members constant; and 8 with the batch of 4.",
)
_add_experiment(
    "ablations",
    InName.FASHION_MNIST,
    "Train BE-SNNs with other weights of the gradient penalty, either entropy estimator or none, and no mirror images.",
)
_add_experiment(
    "baselines",
    InName.FASHION_MNIST,
    "Train baselines otherwise than Table 1 has them, to see why they differ from the paper's figures.",
)
_add_experiment(
    "near-ood",
    InName.CIFAR10,
    "Train every method on six classes, and see whether it knows the other classes' images for strange.",
)


_add_experiment(
    "conversion",
    InName.CIFAR10,
    "Train a plain softmax network, convert it, fit what is each member's own for a few epochs, and compare the two.",
)


@app.command()
def cost(
    in_name: In = InName.CIFAR10,
    overrides: Set = None,
    steps: Annotated[int, typer.Option(help="Training steps to time of each method.", min=1)] = 48,
    rounds: Annotated[int, typer.Option(help="Scoring passes of each method.", min=2)] = 50,
    data_dir: DataDir = None,
    results: Results = RESULTS,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Measure time and memory to train and to score 500 images, of every method, all in one go."""
    from experiments.cost import measure_cost
    from experiments.table1 import FURTHER_METHODS, PAPER_METHODS

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
    """Try the settings that the recipe was chosen from, judged on held-out data and made-up outliers alone."""
    from experiments.hunt import hunt_runs, measure_hunt

    runs = hunt_runs(in_name.value, overrides or ())
    _run(runs, measure_hunt, _workspace(results, data_dir, device), only, workers, time_limit, quiet)


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
    """Draw the confidence of four methods around Two Moons, and put what the eye sees in numbers."""
    from experiments.figure1 import PANELS, draw_figure1, figure1_runs, measure_confidence

    runs, workspace = figure1_runs(range(seeds), overrides or ()), _workspace(results, None, device)
    _run(runs, measure_confidence, workspace, None, workers, time_limit, quiet)
    _say(quiet)(f"wrote {draw_figure1(runs[: len(PANELS)], workspace, picture)}")


@app.command()
def tables(
    documents: Annotated[
        list[Path] | None,
        typer.Option("--into", metavar="FILE", help="A Markdown file with marked places for tables; repeatable."),
    ] = None,
    results: Results = RESULTS,
    quiet: Quiet = False,
) -> None:
    """Make the tables from the records: into the documents that have places for them."""
    from experiments.documents import update_documents

    documents = documents or [path for path in map(Path, DOCUMENTS) if path.exists()]
    for path in update_documents(results, documents):
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
    from experiments.packing import run_all
    from experiments.runs import select

    run_all(select(runs, only or ()), measure, workspace, workers=workers, time_limit=time_limit, say=_say(quiet))


def _workspace(results: Path, data_dir: Path | None, device: str, keep_weights: bool = False) -> "Workspace":
    from experiments.runs import Workspace

    return Workspace(results, data_dir, device, keep_weights)


def _say(quiet: bool) -> Callable[[str], None]:
    return (lambda text: None) if quiet else typer.echo


def run(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code; arguments are the process's own unless given."""
    return exit_code_of(lambda: app(arguments, prog_name="python -m experiments", standalone_mode=False))


if __name__ == "__main__":
    sys.exit(run())
