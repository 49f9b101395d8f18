import logging
import os
import subprocess
import sys
import warnings
from importlib import metadata
from pathlib import Path

import pytest
import torch
import typer

from besnn.cli.app import main
from besnn.cli.options import complete_data, complete_device
from besnn.cli.output import exit_code_of, explain
from besnn.errors import BesnnError, DataError, InputError, NotReadyError

COMMANDS = ["demo", "train", "calibrate", "evaluate", "score", "serve", "monitor", "export", "inspect", "recipes", "data"]
COMMANDS += ["data list", "data fetch", "data verify"]
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


def test_shell_completion():
    def complete(words: str) -> str:
        asked = {"_BESNN_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
        return subprocess.run([PROGRAM], capture_output=True, text=True, timeout=60, env=os.environ | asked).stdout

    assert complete("besnn cal").split() == ["calibrate"]
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
        (OSError(28, "No space left on device", "x"), 1, "No space left on device"),
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
