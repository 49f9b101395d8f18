"""`python -m benchmarks`: how fast besnn is on this machine."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from besnn.cli.options import Device, Quiet
from besnn.cli.output import FAILED, exit_code_of, note, to_json

if TYPE_CHECKING:
    from benchmarks.results import Findings

STANDARD_OUTPUT = Path("-")

app = typer.Typer(name="benchmarks", context_settings={"help_option_names": ["-h", "--help"]}, pretty_exceptions_enable=False)


@app.command()
def bench(
    json: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write all figures as JSON; - for standard output.")
    ] = None,
    device: Device = "auto",
    rows: Annotated[
        list[str] | None, typer.Option("--rows", metavar="NAME", help="Only this row, or several with commas; repeatable.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A trial of seconds, whose figures mean nothing.")] = False,
    into: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE", help="Measure nothing: put the tables of earlier runs into this Markdown file; repeatable."
        ),
    ] = None,
    results: Annotated[Path, typer.Option(metavar="FOLDER", help="Where records are, for --into.")] = Path("results"),
    quiet: Quiet = False,
) -> None:
    """Time scoring, training and search beside what else one would run, and check that what is timed is right."""
    if into:
        from experiments.bench_report import update_documents

        for path in update_documents(results, into):
            note(f"wrote {path}", quiet=quiet)
        return
    from benchmarks.run import bench_record, run_rows
    from benchmarks.setting import setting_for
    from besnn.training.record import write_record
    from experiments.bench_report import as_text

    names = [name for part in rows or () for name in part.split(",")]
    setting = setting_for(device, quick)
    findings = run_rows(setting, names, lambda text: note(text, quiet=quiet))
    record = bench_record(findings, setting)
    if json == STANDARD_OUTPUT:
        typer.echo(to_json(record))
    else:
        if json is not None:
            write_record(json, record)
        if not quiet:
            typer.echo(as_text(record))
    _fail_on_wrong_answers(findings)


def _fail_on_wrong_answers(findings: "Findings") -> None:
    """A missed target is a fact about a machine; a wrong answer is an error."""
    wrong = [check for check in findings.checks if not check.passed]
    for check in wrong:
        typer.echo(f"{check.work}: differs from {check.against} by {check.error:.2g}, allowed {check.at_most:g}", err=True)
    if wrong:
        raise typer.Exit(FAILED)


def run(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code; arguments are the process's own unless given."""
    return exit_code_of(lambda: app(arguments, prog_name="python -m benchmarks", standalone_mode=False))


if __name__ == "__main__":
    sys.exit(run())
