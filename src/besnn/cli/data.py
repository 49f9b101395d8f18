"""`besnn data`: the built-in data sets and their files."""

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from besnn.cli.help import Command
from besnn.cli.options import DataDir, Json, Quiet, complete_data
from besnn.cli.output import announce

if TYPE_CHECKING:
    from besnn.data import FileStatus

app = typer.Typer(name="data", help="List, download and check the built-in data sets.", rich_markup_mode=None)
_LIST_EXAMPLES = """
besnn data list
besnn data list --json
"""
_FETCH_EXAMPLES = """
besnn data fetch fashion-mnist mnist:test
besnn data fetch cifar10 --data-dir /big/disk
"""
_VERIFY_EXAMPLES = """
besnn data verify
besnn data verify mnist --data-dir /big/disk
"""
_NAME_HELP = "Built-in names, such as mnist or mnist:test."


@app.callback(invoke_without_command=True)
def _data(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command("list", cls=Command, epilog=_LIST_EXAMPLES)
def list_sets(data_dir: DataDir = None, json: Json = False) -> None:
    """List the built-in data sets, and the folder where they are expected."""
    from besnn.data import available, data_root

    sets: list[dict[str, object]] = []
    lines = []
    for info in available():
        files = sorted({file.path for files in info.files.values() for file in files})
        sets.append({"name": info.name, "description": info.description, "class_names": list(info.class_names)})
        sets[-1] |= {"splits": dict(info.sizes), "licence": info.licence, "files": files}
        sizes = ", ".join(f"{size:,} {split}" for split, size in info.sizes.items())
        lines.append(f"{info.name:<13}  {info.description}; {sizes}; licence: {info.licence}")
    root = data_root(data_dir)
    announce({"folder": str(root), "sets": sets}, [*lines, f"folder: {root}"], as_json=json, quiet=False)


@app.command(cls=Command, epilog=_FETCH_EXAMPLES)
def fetch(
    names: Annotated[list[str], typer.Argument(metavar="NAME ...", help=_NAME_HELP, autocompletion=complete_data)],
    data_dir: DataDir = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Download missing files of built-in sets, and check them.

    They come from their official addresses. An interrupted download resumes.
    """
    from besnn.data import fetch as fetch_set

    progress = sys.stderr.isatty() and not quiet
    _show({name: fetch_set(name, data_dir, progress=progress) for name in names}, json, quiet)


@app.command(cls=Command, epilog=_VERIFY_EXAMPLES)
def verify(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME ...]", help=f"{_NAME_HELP} (default: all that are there)", autocompletion=complete_data),
    ] = None,
    data_dir: DataDir = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Compare files with the official ones.

    The command fails if one was altered, or if a set that was named is missing.
    """
    from besnn.data import Status, available
    from besnn.data import verify as verify_set
    from besnn.errors import DataError

    found = {name: verify_set(name, data_dir) for name in names or [info.name for info in available()]}
    _show(found, json, quiet)
    bad = {Status.ALTERED, Status.MISSING} if names else {Status.ALTERED}
    if wrong := [file for files in found.values() for file in files if file.status in bad]:
        raise DataError(f"{wrong[0].path} is {wrong[0].status}" + (f", and {len(wrong) - 1} more" if wrong[1:] else ""))


def _show(found: "Mapping[str, Sequence[FileStatus]]", json: bool, quiet: bool) -> None:
    facts = {
        name: [{"path": str(file.path), "status": str(file.status), "detail": file.detail} for file in files]
        for name, files in found.items()
    }
    announce(facts, [line for name, files in found.items() for line in _in_words(name, files)], as_json=json, quiet=quiet)


def _in_words(name: str, files: "Sequence[FileStatus]") -> list[str]:
    """Return one line per file of a set, or a single line if all are missing."""
    if not files:
        return [f"{name}: generated, no files needed"]
    if all(file.status == "missing" for file in files):
        return [f"{name}: missing ({files[0].detail})"]
    return [f"{name}: {file.status} {file.path}{f' ({file.detail})' if file.detail else ''}" for file in files]
