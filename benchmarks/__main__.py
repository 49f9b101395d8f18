"""`python -m benchmarks`: everything that is timed, and the pages made from it."""

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from besnn.cli.options import DataDir, Device, Model, Quiet
from besnn.cli.output import FAILED, exit_code_of, note, to_json

DEFAULT = "speed"
STANDARD_OUTPUT = Path("-")

app = typer.Typer(
    name="benchmarks",
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    help=f"Time and check besnn on this machine. Without a command: {DEFAULT}.",
    no_args_is_help=False,
)

Json = Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the record here; - for standard output.")]
Rounds = Annotated[int, typer.Option(help="How often each is timed.", min=1)]


@app.command()
def speed(
    json: Json = None,
    device: Device = "auto",
    rows: Annotated[
        list[str] | None, typer.Option("--rows", metavar="NAME", help="Only this row, or several with commas; repeatable.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A trial of a few seconds, whose figures mean nothing.")] = False,
    quiet: Quiet = False,
) -> None:
    """Time scoring, training and search beside what one would otherwise run, and check the answers."""
    from benchmarks.findings import setting_for
    from benchmarks.speed import as_text, run_rows, speed_record

    names = [name for part in rows or () for name in part.split(",")]
    setting = setting_for(device, quick)
    findings = run_rows(setting, names, _say(quiet))
    record = speed_record(findings, setting)
    _write(record, json, quiet)
    if json != STANDARD_OUTPUT and not quiet:
        typer.echo(as_text(record))
    # A missed target is a fact about a machine; a wrong answer is an error.
    wrong = [check for check in findings.checks if not check.passed]
    for check in wrong:
        typer.echo(f"{check.work}: differs from {check.against} by {check.error:.2g}, allowed {check.at_most:g}", err=True)
    _fail_if(bool(wrong))


@app.command("serve-load")
def serve_load(
    model: Annotated[
        Path | None, typer.Option(help="A model file; without it the paper's FashionMNIST network, untrained.")
    ] = None,
    workers: Annotated[int, typer.Option(help="Worker processes of the service.", min=1)] = 1,
    rounds: Rounds = 3,
    seconds: Annotated[float, typer.Option(help="Seconds per round.")] = 8.0,
    json: Json = None,
    quiet: Quiet = False,
) -> None:
    """Compare the service under the load of 64 clients with the scorer in process, and check every answer."""
    from benchmarks.serve_load import LoadOptions, measure_load

    record = measure_load(model, LoadOptions(workers, rounds, seconds), _say(quiet))
    _write(record, json, quiet)
    _fail_if(any(figure["wrong"] for figure in record["figures"]))


@app.command("serve-fuzz")
def serve_fuzz(
    bodies: Annotated[int, typer.Option(help="How many requests to send.", min=2)] = 100_000,
    json: Json = None,
    quiet: Quiet = False,
) -> None:
    """Send mutated request bodies to the service: never a 5xx, never a hang, no growing memory."""
    from benchmarks.serve_fuzz import measure_fuzz

    _write(measure_fuzz(bodies, _say(quiet)), json, quiet)


@app.command("file-fuzz")
def file_fuzz(
    files: Annotated[int, typer.Option(help="How many files of each format to read.", min=1)] = 10_000,
    seed: Annotated[int, typer.Option(help="Of the mutations.", min=0)] = 0,
    json: Json = None,
    quiet: Quiet = False,
) -> None:
    """Read mutated model files, tables and images: each gives a result or one line, in little time."""
    from benchmarks.file_fuzz import measure_file_fuzz

    _write(measure_file_fuzz(files, seed, _say(quiet)), json, quiet)


@app.command()
def soak(
    minutes: Annotated[float, typer.Option(help="How long.", min=0.1)] = 120.0,
    every: Annotated[float, typer.Option(help="Seconds between faults.", min=1)] = 60.0,
    json: Json = None,
    quiet: Quiet = False,
) -> None:
    """Run the service at 70 % of its capacity while workers die, disks vanish and clients attack; check every answer."""
    from benchmarks.soak import measure_soak

    record = measure_soak(minutes, every, _say(quiet))
    _write(record, json, quiet)
    _fail_if(bool(record["wrong"] or record["lost_otherwise"]))


@app.command()
def kills(
    number: Annotated[int, typer.Option("--kills", help="How often each command is killed.", min=0)] = 50,
    disks: Annotated[int, typer.Option(help="On how many full disks each command is run.", min=0)] = 4,
    seed: Annotated[int, typer.Option(help="Of the moments.", min=0)] = 0,
    json: Json = None,
    quiet: Quiet = False,
) -> None:
    """Kill commands that write at random moments, and fill the disk: the output is the old or the new one, whole."""
    from benchmarks.kills import measure_kills

    _write(measure_kills(number, disks, seed, _say(quiet)), json, quiet)


@app.command("drift-delay")
def drift_delay(model: Model, data_dir: DataDir = None, json: Json = None, quiet: Quiet = False) -> None:
    """Measure how soon a FashionMNIST detector's drift alarm is raised, and how rarely without drift."""
    from benchmarks.drift_delay import measure_drift
    from besnn import Detector

    _write(measure_drift(Detector.load(model), data_dir), json, quiet)


@app.command()
def onnx(
    only: Annotated[list[str] | None, typer.Option("--only", metavar="NAME", help="Only this detector; repeatable.")] = None,
    data_dir: DataDir = None,
    json: Json = None,
    quiet: Quiet = False,
) -> None:
    """Compare ONNX Runtime's answers with PyTorch's on the built-in test sets; an existing record is updated."""
    from benchmarks.onnx_runtime import CASES, all_passed, onnx_record
    from besnn.errors import InputError
    from besnn.training.record import read_record

    for name in only or ():
        if name not in CASES:
            raise InputError(f"unknown detector {name!r}: use some of {'; '.join(CASES)}")
    earlier = read_record(json) if json is not None and json.is_file() else {}
    record = onnx_record(only or CASES, data_dir, earlier, _say(quiet))
    _write(record, json, quiet)
    _fail_if(not all_passed(record))


@app.command()
def ray(
    rows: Annotated[int, typer.Option(help="Rows of the table.", min=1)] = 1_000_000,
    rounds: Rounds = 3,
    json: Json = None,
    quiet: Quiet = False,
) -> None:
    """Score a table on Ray and with the local engine, kill a worker and the driver, and compare all outputs."""
    from benchmarks.ray_scoring import measure_ray

    record = measure_ray(rows, rounds)
    _write(record, json, quiet)
    _fail_if(not record["equal"])


@app.command()
def memory(
    rows: Annotated[int, typer.Option(help="Rows of the larger table.", min=100)] = 1_000_000,
    json: Json = None,
    quiet: Quiet = False,
) -> None:
    """Measure the peak memory of besnn score, which must not grow with the table."""
    from benchmarks.table_memory import LIMIT_MB, measure_table_memory

    record = measure_table_memory(rows)
    _write(record, json, quiet)
    _fail_if(any(run["added_mb"] > LIMIT_MB for run in record["runs"]))


@app.command("first-hour")
def first_hour(
    tasks: Annotated[list[str] | None, typer.Option("--task", metavar="NAME", help="Only this task; repeatable.")] = None,
    seeds: Annotated[int, typer.Option(help="How often each task is drawn and trained.", min=1)] = 5,
    development: Annotated[bool, typer.Option("--development", help="The tasks that settings are chosen on.")] = False,
    results: Annotated[Path, typer.Option(metavar="FOLDER", help="Where records go.")] = Path("results"),
    device: Device = "auto",
    data_dir: DataDir = None,
    quiet: Quiet = False,
) -> None:
    """Train on small sets of images by default settings, and compare with networks one would write oneself."""
    from benchmarks.first_hour import write_records
    from benchmarks.first_hour_tasks import DEVELOPMENT, REPORTED, TASKS
    from besnn.errors import InputError

    for name in tasks or ():
        if name not in TASKS:
            raise InputError(f"unknown task {name!r}: use some of {', '.join(TASKS)}")
    write_records(tasks or list(DEVELOPMENT if development else REPORTED), range(seeds), data_dir, device, results, _say(quiet))


@app.command("table-suite")
def table_suite(
    half: Annotated[str, typer.Option(help="development, on which settings may be chosen, or reported.")] = "development",
    detectors: Annotated[
        list[str] | None, typer.Option("--detector", metavar="NAME", help="Only this one; repeatable.")
    ] = None,
    only: Annotated[list[str] | None, typer.Option("--table", metavar="NAME", help="Only this table; repeatable.")] = None,
    seeds: Annotated[list[int] | None, typer.Option("--seed", help="Only this seed; repeatable.", min=0)] = None,
    jobs: Annotated[int, typer.Option(help="Processes at a time.", min=1)] = 1,
    data_dir: DataDir = None,
    json: Json = None,
    quiet: Quiet = False,
) -> None:
    """Compare besnn with other detectors on tables that need no download; an existing record is updated."""
    from benchmarks.tables.detectors import DETECTORS
    from benchmarks.tables.suite import HALVES, SEEDS, run_suite
    from besnn.checks import check_choice
    from besnn.training.record import read_record

    check_choice("half", half, HALVES)
    for name in detectors or ():
        check_choice("detector", name, DETECTORS)
    for name in only or ():
        check_choice("table", name, HALVES[half])
    earlier = read_record(json) if json is not None and json.is_file() else {}
    keep = partial(_write, path=json, quiet=True)
    record = run_suite(
        half, detectors or list(DETECTORS), seeds or range(SEEDS), jobs, data_dir, earlier, _say(quiet), keep, only or ()
    )
    _write(record, json, quiet)


@app.command()
def licences(quiet: Quiet = False) -> None:
    """Write docs/licences.md: the licences of all dependencies, as the installed packages state them."""
    from benchmarks.licences import write_licences

    note(f"wrote {write_licences()}", quiet=quiet)


@app.command()
def sbom(
    output: Annotated[Path, typer.Argument(metavar="FILE", help="The file to write, such as besnn.cdx.json.")],
    quiet: Quiet = False,
) -> None:
    """List all dependencies with their versions and licences in CycloneDX's format, as `make release` does."""
    from benchmarks.licences import write_sbom

    write_sbom(output)
    note(f"wrote {output}", quiet=quiet)


@app.command()
def tables(
    results: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Where records are.")] = None, quiet: Quiet = False
) -> None:
    """Write the tables of docs/speed.md, serving.md, export.md, scale.md and tables.md from the records in results/bench."""
    from benchmarks.pages import write_pages

    for path in write_pages(results):
        note(f"wrote {path}", quiet=quiet)


def _write(record: Mapping[str, Any], path: Path | None, quiet: bool) -> None:
    """Write a record to a file, or print it."""
    from besnn.training.record import write_record

    if path == STANDARD_OUTPUT or (path is None and record["experiment"] != DEFAULT and not quiet):
        typer.echo(to_json(record))
    elif path is not None:
        write_record(path, record)


def _fail_if(wrong: bool) -> None:
    if wrong:
        raise typer.Exit(FAILED)


def _say(quiet: bool) -> Callable[[str], None]:
    return lambda text: note(text, quiet=quiet)


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; arguments are the process's own unless given."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if not given or (given[0].startswith("-") and given[0] not in ("-h", "--help")):
        given.insert(0, DEFAULT)
    return exit_code_of(lambda: app(given, prog_name="python -m benchmarks", standalone_mode=False))


if __name__ == "__main__":
    sys.exit(run())
