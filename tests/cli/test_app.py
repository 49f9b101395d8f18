import io
import logging
import os
import re
import shlex
import subprocess
import sys
import warnings
from functools import partial
from importlib import metadata
from pathlib import Path

import pytest
import torch
import typer
from rich.console import Console

from besnn.cli.app import app, main
from besnn.cli.options import complete_data, complete_device
from besnn.cli.output import counting_progress, exit_code_of, explain
from besnn.errors import BesnnError, DataError, InputError, NotReadyError

COMMANDS = ["demo", "train", "wrap", "calibrate", "evaluate", "score", "triage", "serve", "monitor", "export", "inspect"]
COMMANDS += ["recipes", "data", "data list", "data fetch", "data verify"]
PROGRAM = Path(sys.executable).parent / "besnn"


def failing(error: BaseException):
    """A command that ends in an error."""

    def fail() -> None:
        raise error

    return fail


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(besnn, command):
    outcome = besnn(*command.split(), "--help")
    assert (outcome.code, outcome.err) == (0, "")
    assert f"besnn {command}" in outcome.out
    assert besnn(*command.split(), "-h").out == outcome.out
    if command != "data":
        assert not re.search(r"<\w+>|\{|\]\.\.\.", outcome.out)  # no types of Python, no nested brackets


def test_every_option_with_a_value_states_its_default_or_is_off_without_it():
    off = {"--set", "--json", "--report", "--token-file", "--allow-host", "--drift-state", "--state", "--model"}
    program = typer.main.get_command(app)
    context = typer.Context(program)
    for name, command in {**program.commands, **program.commands["data"].commands}.items():
        for option in command.params:
            if name != "data" and option.param_type_name == "option" and not option.is_flag and not option.required:
                record = option.get_help_record(context)
                assert off & set(option.opts) or "default: " in record[1], f"besnn {name} {option.opts[0]}"


@pytest.mark.parametrize("command", [name for name in COMMANDS if name != "data"])
def test_every_command_has_a_sentence_and_two_examples_that_parse(besnn, command):
    text = besnn(*command.split(), "--help").out
    sentence = text.split("\n\n")[1]
    assert sentence.strip().endswith(".")
    assert len(" ".join(sentence.split())) <= 80  # short enough for the list of commands
    examples = [line.strip() for line in text.partition("Examples:")[2].strip().splitlines()]
    assert len(examples) == 2
    program = typer.main.get_command(app)
    for example in examples:
        _, *words = shlex.split(example.partition(" > ")[0])
        assert words[: len(command.split())] == command.split()
        parsed = program
        for word in command.split():
            parsed = parsed.commands[word]
        parsed.make_context("besnn", words[len(command.split()) :])  # raises if an argument or option is wrong


@pytest.mark.parametrize("arguments", [(), ("data",)])
def test_without_a_command_there_is_help(besnn, arguments):
    outcome = besnn(*arguments)
    assert (outcome.code, outcome.err) == (0, "")
    assert "Commands" in outcome.out


def test_version_is_the_installed_one(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["besnn", "--version"])
    try:
        with warnings.catch_warnings(), pytest.raises(SystemExit) as ended:
            main()
    finally:
        logging.disable(logging.NOTSET)
    assert ended.value.code == 0
    assert capsys.readouterr() == (f"besnn {metadata.version('besnn')}\n", "")


def test_python_m_besnn_is_the_same_program():
    done = subprocess.run([sys.executable, "-m", "besnn", "nonsense"], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith("besnn: No such command 'nonsense'")


def test_help_imports_no_heavy_library():
    heavy = {"torch", "lightning", "pyarrow", "sklearn", "matplotlib", "numpy"}
    code = f"import sys; from besnn.cli.app import run; run(['train', '--help']); print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_what_is_wrong_with_arguments_is_said_before_anything_slow_is_imported(tmp_path):
    (tmp_path / "table.csv").write_text("x,kind\n1,a\n")
    lines = [
        "train nonsense -o model.safetensors",
        "train table.csv -o model.safetensors",
        "train table.csv --label kind -o table.csv",
        "score none.safetensors two-moons -o scores.csv",
        "evaluate none.safetensors --in two-moons --out two-moons",
        "calibrate none.safetensors two-moons",
        "wrap none.pt2 two-moons -o model.safetensors",
        "inspect none.safetensors",
        "serve none.safetensors",
        "export none.safetensors",
    ]
    slow = {"torch", "lightning", "sklearn", "matplotlib", "scipy"}
    code = (
        f"import sys; from besnn.cli.app import run\nfor line in {lines}: print(run(line.split()), {slow} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout.splitlines() == ["2 set()"] * len(lines), done.stderr


def test_shell_completion():
    def complete(words: str) -> str:
        asked = {"_BESNN_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
        return subprocess.run([PROGRAM], capture_output=True, text=True, timeout=60, env=os.environ | asked).stdout

    assert complete("besnn data verify fash").split() == ["fashion-mnist"]
    assert complete_data("mn") == ["mnist"]
    assert complete_device("c") == ["cpu", "cuda"]


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (InputError("alpha=2\n is  wrong"), 2, "alpha=2 is wrong"),
        (NotReadyError("calibrate first"), 2, "calibrate first"),
        (DataError("damaged"), 1, "damaged"),
        (BesnnError("diverged"), 1, "diverged"),
        (OSError(28, "No space left on device", "x"), 1, "besnn: x: No space left on device"),
        (torch.OutOfMemoryError("CUDA out of memory. Tried ..."), 1, "the GPU is out of memory: use --device cpu"),
        (KeyError("oops"), 1, "unexpected KeyError: 'oops'"),
        (typer.BadParameter("too small"), 2, "too small"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else None,
)
def test_errors_become_an_exit_code_and_one_line(capsys, error, code, words):
    assert exit_code_of(failing(error)) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert words in captured.err
    assert captured.err.startswith("besnn: ")


def test_a_bug_asks_for_a_report_and_shows_its_traceback_when_debugging(capsys, monkeypatch):
    bug = failing(ZeroDivisionError("in the middle"))
    exit_code_of(bug)
    assert "BESNN_DEBUG=1" in capsys.readouterr().err
    monkeypatch.setenv("BESNN_DEBUG", "1")
    assert exit_code_of(bug) == 1
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize("error", [KeyboardInterrupt(), typer.Abort()])
def test_an_interrupt_is_quiet(capsys, error):
    assert exit_code_of(failing(error)) == 130
    assert capsys.readouterr() == ("", "")


def test_wrong_use_points_to_the_help_of_the_command(besnn):
    assert "besnn calibrate --help" in besnn("calibrate").err
    assert explain(typer.BadParameter("x"))[1].endswith("(see besnn --help)")


@pytest.mark.parametrize(("total", "words"), [(1200, "300 of 1,200 inputs"), (None, "300 inputs")])
def test_progress_shows_the_total_where_it_is_known(monkeypatch, total, words):
    text = io.StringIO()
    monkeypatch.setattr("rich.console.Console", partial(Console, file=text, force_terminal=True, width=100))
    with counting_progress(quiet=False, total=total) as progress:
        progress(300)
    assert words in text.getvalue()
