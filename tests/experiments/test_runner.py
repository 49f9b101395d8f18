"""Many runs: what is left out, what fails, what is left over; one by one and side by side."""

import importlib
import multiprocessing
from pathlib import Path

import pytest

from besnn.errors import BesnnError, InputError
from besnn.training.fit import Fitted
from besnn.training.record import read_record
from experiments.detection import Measured, measure_detection
from experiments.packing import run_all
from experiments.runs import Run, Workspace
from experiments.table1 import table1_runs


def measure_nothing(fitted: Fitted, run: Run, workspace: Workspace) -> Measured:
    return Measured({})


@pytest.fixture
def runs(small: dict[str, tuple[str, ...]]) -> list[Run]:
    return table1_runs("fashion-mnist", range(2), small["fashion-mnist"], methods=["softmax"])


@pytest.fixture
def broken(small: dict[str, tuple[str, ...]]) -> Run:
    settings = [*small["fashion-mnist"], "training.augment.crop=99"]
    return table1_runs("fashion-mnist", [0], settings, methods=["gaussian"])[0]


def records(workspace: Workspace) -> set[str]:
    return {path.stem for path in workspace.results.glob("*/*.json")}


def test_what_is_recorded_is_not_run_again(runs: list[Run], workspace: Workspace) -> None:
    said: list[str] = []
    run_all(runs, measure_nothing, workspace, say=said.append)
    assert [line.split(":")[0] for line in said] == [f"[{n}/2] table1/{run.name}" for n, run in enumerate(runs, start=1)]
    first = workspace.record(runs[0]).read_text()

    said.clear()
    run_all(runs, measure_nothing, workspace, say=said.append)
    assert said == ["2 of 2 runs are recorded already"]

    said.clear()
    workspace.record(runs[1]).unlink()
    run_all(runs, measure_nothing, workspace, say=said.append)
    assert said[0] == "1 of 2 runs are recorded already"
    assert [line.split(":")[0] for line in said[1:]] == [f"[1/1] table1/{runs[1].name}"]
    assert workspace.record(runs[0]).read_text() == first


def test_a_failing_run_is_told_of_and_the_others_go_on(runs: list[Run], broken: Run, workspace: Workspace) -> None:
    said: list[str] = []
    with pytest.raises(BesnnError, match="1 of 3 runs failed"):
        run_all([broken, *runs], measure_nothing, workspace, say=said.append)
    (failure,) = [line for line in said if "failed" in line]
    assert failure.startswith(f"[1/3] table1/{broken.name}: failed training.augment.crop=99 is too much")
    assert "\n" not in failure
    assert records(workspace) == {run.name for run in runs}


def test_an_unforeseen_error_is_one_line_too(runs: list[Run], workspace: Workspace) -> None:
    def stumble(fitted: Fitted, run: Run, workspace: Workspace) -> Measured:
        raise RuntimeError("CUDA is\n  out of memory")

    said: list[str] = []
    with pytest.raises(BesnnError):
        run_all(runs[:1], stumble, workspace, say=said.append)
    assert said[0].endswith("failed RuntimeError: CUDA is out of memory")


def test_a_run_is_stopped_when_the_time_is_up(small: dict[str, tuple[str, ...]], workspace: Workspace) -> None:
    endless = table1_runs("fashion-mnist", [0], [*small["fashion-mnist"], "training.epochs=100000"], methods=["softmax"])
    with pytest.raises(BesnnError, match="1 of 1 runs are left"):
        run_all(endless, measure_nothing, workspace, time_limit=2, say=lambda line: None)
    assert workspace.scratch(endless[0]).is_dir()


@pytest.mark.parametrize("workers", [1, 2])
def test_nothing_starts_when_the_time_is_up(runs: list[Run], workspace: Workspace, workers: int) -> None:
    said: list[str] = []
    with pytest.raises(BesnnError, match="2 of 2 runs are left: the same command goes on"):
        run_all(runs, measure_nothing, workspace, workers=workers, time_limit=0, say=said.append)
    assert [line.split(": ")[1] for line in said] == ["left", "left"]
    assert not records(workspace)


def test_a_stale_record_stops_all_before_anything_runs(runs: list[Run], workspace: Workspace) -> None:
    run_all(runs[1:], measure_nothing, workspace, say=lambda line: None)
    changed = Run("table1", runs[1].recipe.model_copy(update={"name": "other"}), runs[1].unknown)
    with pytest.raises(InputError, match="comes from another recipe"):
        run_all([runs[0], changed], measure_nothing, workspace)
    assert records(workspace) == {runs[1].name}


@pytest.mark.slow  # new processes import everything anew
def test_workers_do_the_same_and_fail_each_for_itself(
    runs: list[Run], broken: Run, workspace: Workspace, tmp_path: Path
) -> None:
    said: list[str] = []
    with pytest.raises(BesnnError, match="1 of 2 runs failed"):
        run_all([broken, runs[0]], measure_detection, workspace, workers=2, say=said.append)
    assert sorted(line.split(": ")[1].split(" ")[0] for line in said) == ["done", "failed"]
    assert records(workspace) == {runs[0].name}
    alone = Workspace(tmp_path / "alone", workspace.data_dir, "cpu")
    run_all(runs[:1], measure_detection, alone, say=said.append)
    assert _figures(alone, runs[0]) == _figures(workspace, runs[0])


@pytest.mark.slow  # new processes import everything anew
def test_a_dead_worker_is_a_failed_run_and_an_interrupt_stops_the_others(
    runs: list[Run], small: dict[str, tuple[str, ...]], workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parent)
    endless = table1_runs("fashion-mnist", [0], [*small["fashion-mnist"], "training.epochs=100000"], methods=["gaussian"])
    said: list[str] = []

    def interrupt(line: str) -> None:
        said.append(line)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_all([runs[0], *endless], importlib.import_module("fatal").die, workspace, workers=2, say=interrupt)
    assert said == [f"[1/2] table1/{runs[0].name}: failed its process ended with exit code 3"]
    assert multiprocessing.active_children() == []


def _figures(workspace: Workspace, run: Run) -> object:
    fields = read_record(workspace.record(run))
    return fields["accuracy"], fields["scores"]
