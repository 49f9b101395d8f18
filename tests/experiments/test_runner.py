"""Executing runs: records, checkpoints and twins; what is skipped, fails or is left; one by one and side by side."""

import hashlib
import importlib
import itertools
import multiprocessing
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from besnn.detection.scores import scores_for
from besnn.errors import BesnnError, InputError
from besnn.training import parse_recipe
from besnn.training.fit import Fitted
from besnn.training.record import read_record
from experiments.detection import measure_detection
from experiments.runner import TimeUpError, execute, run_all
from experiments.runs import Measured, Run, Workspace
from experiments.suites import table1_runs, table3_runs

Small = dict[str, tuple[str, ...]]


def measure_weights(fitted: Fitted, run: Run, workspace: Workspace) -> Measured:
    return Measured({"weights": [float(weight.detach().sum()) for weight in fitted.detector.model.parameters()]})


def break_down(fitted: Fitted, run: Run, workspace: Workspace) -> Measured:
    raise RuntimeError("out of memory")


@pytest.fixture
def steps_for_seconds(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A clock that moves on by a second when a training step looks at it."""
    clock = itertools.count()
    with monkeypatch.context() as patched:
        patched.setattr("experiments.runner.time", SimpleNamespace(time=lambda: next(clock)))
        pauses = itertools.count(step=10)  # as long as between two checkpoints
        patched.setattr("besnn.training.trainer.time", SimpleNamespace(monotonic=lambda: next(pauses)))
        yield


@pytest.fixture
def small_besnn(small: Small, small_generator: tuple[str, ...]) -> tuple[str, ...]:
    return (*small["fashion-mnist"], *small_generator)


def test_a_record_has_every_field_of_the_contract(workspace: Workspace, small: Small) -> None:
    (run,) = table1_runs("cifar10", [0], [*small["cifar10"], "pretraining.epochs=2"], methods=["duq"])
    fields = execute(run, measure_detection, workspace, parallel=3)
    assert read_record(workspace.record(run)) == fields
    assert not workspace.scratch(run).exists()
    unknown = ["svhn", "cifar100-sample"]
    expected = {"experiment": "table1", "method": "duq", "in": "cifar10", "out": unknown, "members": 1, "seed": 0}
    assert {name: fields[name] for name in expected} == expected
    assert set(fields["scores"]) == {*scores_for("distances"), "nearest-neighbour", "class-gaussian", "combined"}
    for sets in fields["scores"].values():
        assert set(sets) == set(unknown)
        assert set(sets["svhn"]) == {"auroc", "aupr_in", "aupr_out", "fpr95", "fpr95_ood", "n_in", "n_out"}
        assert (sets["svhn"]["n_in"], sets["svhn"]["n_out"]) == (90, 90)
    assert parse_recipe(fields["recipe"]) == run.recipe
    assert fields["parameters"] > 0
    assert fields["seconds"] > 0
    origin = fields["provenance"]
    assert {"commit", "versions", "hardware", "date"} <= set(origin)
    assert (origin["parallel_runs"], origin["first_step"]) == (3, 0)
    assert "svhn:test: test_32x32.mat is partial: 90 of 26,032 records" in origin["data_note"]
    test_file = "SVHN/test_32x32.mat"
    assert workspace.data_dir is not None
    assert origin["data"][test_file] == hashlib.sha256((workspace.data_dir / test_file).read_bytes()).hexdigest()
    assert "cifar-10-batches-bin/data_batch_5.bin" in origin["data"]


@pytest.mark.usefixtures("steps_for_seconds")
def test_an_interrupted_run_continues_to_the_same_weights(
    workspace: Workspace, small_besnn: tuple[str, ...], tmp_path: Path
) -> None:
    (run,) = table1_runs("fashion-mnist", [0], [*small_besnn, "training.epochs=3"], methods=["be-snn"])
    steps_per_epoch = 90 // 16
    with pytest.raises(TimeUpError):
        execute(run, measure_weights, workspace, deadline=steps_per_epoch + 2)  # in the second epoch
    assert not workspace.record(run).exists()
    with pytest.raises(RuntimeError, match="out of memory"):
        execute(run, break_down, workspace)  # when training is over
    continued = execute(run, measure_weights, workspace)
    assert continued["provenance"]["first_step"] == 3 * steps_per_epoch
    whole = execute(run, measure_weights, Workspace(tmp_path / "others", workspace.data_dir, "cpu"))
    assert continued["weights"] == whole["weights"]


@pytest.mark.usefixtures("steps_for_seconds")
def test_a_record_says_where_a_run_was_continued(workspace: Workspace, small: Small) -> None:
    (run,) = table1_runs("fashion-mnist", [0], [*small["fashion-mnist"], "training.epochs=6"], methods=["softmax"])
    with pytest.raises(TimeUpError):
        execute(run, measure_weights, workspace, deadline=3)  # a step is an epoch here
    assert execute(run, measure_weights, workspace)["provenance"]["first_step"] == 3


def test_runs_of_one_seed_begin_with_one_plain_network(workspace: Workspace, small: Small, tmp_path: Path) -> None:
    changes = [*small["cifar10"], "pretraining={epochs: 2, batch_size: 64}"]
    duq, gaussian = table1_runs("cifar10", [0], changes, methods=["duq", "gaussian"])
    execute(duq, measure_weights, workspace)
    (kept,) = workspace.plain_networks.iterdir()
    written = kept.stat().st_mtime_ns
    shared = execute(gaussian, measure_weights, workspace)
    assert [path.stat().st_mtime_ns for path in workspace.plain_networks.iterdir()] == [written]
    alone = execute(gaussian, measure_weights, Workspace(tmp_path / "others", workspace.data_dir, "cpu"))
    assert shared["weights"] == alone["weights"]
    (other_seed,) = table1_runs("cifar10", [1], changes, methods=["gaussian"])
    execute(other_seed, measure_weights, workspace)
    assert len(list(workspace.plain_networks.iterdir())) == 2
    assert not workspace.scratch(duq).exists()
    assert not workspace.scratch(gaussian).exists()


@pytest.mark.usefixtures("steps_for_seconds")
@pytest.mark.parametrize("deadline", [2, 6])  # of four steps as a plain network, and four of its own
def test_a_run_stopped_in_either_training_continues_to_the_same_weights(
    deadline: int, workspace: Workspace, small: Small, tmp_path: Path
) -> None:
    changes = [*small["cifar10"], "data.limit=64", "data.validation=0.1", "training.epochs=4", "training.batch_size=64"]
    changes += ["training.batch_rows=null", "pretraining={epochs: 4, batch_size: 64}"]
    (run,) = table1_runs("cifar10", [0], changes, methods=["gaussian"])
    with pytest.raises(TimeUpError):
        execute(run, measure_weights, workspace, deadline=deadline)
    continued = execute(run, measure_weights, workspace)
    assert continued["provenance"]["first_step"] == deadline
    whole = execute(run, measure_weights, Workspace(tmp_path / "others", workspace.data_dir, "cpu"))
    assert continued["weights"] == whole["weights"]


def test_a_run_that_another_table_has_is_not_done_twice(workspace: Workspace, small_besnn: tuple[str, ...]) -> None:
    (run,) = table1_runs("fashion-mnist", [0], small_besnn, methods=["be-snn"])
    fields = execute(run, measure_weights, workspace)
    twin = next(each for each in table3_runs("fashion-mnist", [0], small_besnn) if each.recipe == run.recipe)
    copied = execute(twin, break_down, workspace)
    assert copied == fields | {"experiment": "table3", "same_run_as": "table1/fashion-mnist-be-snn-n4-seed0.json"}
    assert read_record(workspace.record(twin)) == copied


@pytest.fixture
def runs(small: Small) -> list[Run]:
    return table1_runs("fashion-mnist", range(2), small["fashion-mnist"], methods=["softmax"])


@pytest.fixture
def broken(small: Small) -> Run:
    settings = [*small["fashion-mnist"], "training.augment.crop=99"]
    return table1_runs("fashion-mnist", [0], settings, methods=["gaussian"])[0]


def records(workspace: Workspace) -> set[str]:
    return {path.stem for path in workspace.results.glob("*/*.json")}


def test_what_is_recorded_is_not_run_again(runs: list[Run], workspace: Workspace) -> None:
    said: list[str] = []
    run_all(runs, measure_weights, workspace, say=said.append)
    assert [line.split(":")[0] for line in said] == [f"[{n}/2] table1/{run.name}" for n, run in enumerate(runs, start=1)]
    first = workspace.record(runs[0]).read_text()

    said.clear()
    run_all(runs, measure_weights, workspace, say=said.append)
    assert said == ["2 of 2 runs are recorded already"]

    said.clear()
    workspace.record(runs[1]).unlink()
    run_all(runs, measure_weights, workspace, say=said.append)
    assert said[0] == "1 of 2 runs are recorded already"
    assert [line.split(":")[0] for line in said[1:]] == [f"[1/1] table1/{runs[1].name}"]
    assert workspace.record(runs[0]).read_text() == first


def test_if_a_run_fails_the_others_continue(runs: list[Run], broken: Run, workspace: Workspace) -> None:
    said: list[str] = []
    with pytest.raises(BesnnError, match="1 of 3 runs failed"):
        run_all([broken, *runs], measure_weights, workspace, say=said.append)
    (failure,) = [line for line in said if "failed" in line]
    assert failure.startswith(f"[1/3] table1/{broken.name}: failed training.augment.crop=99 is too large")
    assert "\n" not in failure
    assert records(workspace) == {run.name for run in runs}


def test_an_unforeseen_error_is_one_line_too(runs: list[Run], workspace: Workspace) -> None:
    def stumble(fitted: Fitted, run: Run, workspace: Workspace) -> Measured:
        raise RuntimeError("CUDA is\n  out of memory")

    said: list[str] = []
    with pytest.raises(BesnnError):
        run_all(runs[:1], stumble, workspace, say=said.append)
    assert said[0].endswith("failed RuntimeError: CUDA is out of memory")


def test_a_run_is_stopped_when_the_time_is_up(small: Small, workspace: Workspace) -> None:
    endless = table1_runs("fashion-mnist", [0], [*small["fashion-mnist"], "training.epochs=100000"], methods=["softmax"])
    with pytest.raises(BesnnError, match="1 of 1 runs are left"):
        run_all(endless, measure_weights, workspace, time_limit=2, say=lambda line: None)
    assert workspace.scratch(endless[0]).is_dir()


@pytest.mark.parametrize("workers", [1, 2])
def test_nothing_starts_when_the_time_is_up(runs: list[Run], workspace: Workspace, workers: int) -> None:
    said: list[str] = []
    with pytest.raises(BesnnError, match="2 of 2 runs are left: the same command continues"):
        run_all(runs, measure_weights, workspace, workers=workers, time_limit=0, say=said.append)
    assert [line.split(": ")[1] for line in said] == ["left", "left"]
    assert not records(workspace)


def test_a_stale_record_stops_all_before_anything_runs(runs: list[Run], workspace: Workspace) -> None:
    run_all(runs[1:], measure_weights, workspace, say=lambda line: None)
    changed = Run("table1", runs[1].recipe.model_copy(update={"name": "other"}), runs[1].unknown)
    with pytest.raises(InputError, match="comes from another recipe"):
        run_all([runs[0], changed], measure_weights, workspace)
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
    runs: list[Run], small: Small, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
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
