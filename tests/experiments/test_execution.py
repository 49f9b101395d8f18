"""One run: its record, its checkpoint, its twin."""

import hashlib
import itertools
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from besnn.detection.scores import scores_for
from besnn.training import parse_recipe
from besnn.training.fit import Fitted
from besnn.training.record import read_record
from experiments.detection import Measured, measure_detection
from experiments.execution import TimeUpError, execute
from experiments.runs import Run, Workspace
from experiments.table1 import table1_runs
from experiments.table3 import table3_runs

Small = dict[str, tuple[str, ...]]


def measure_nothing(fitted: Fitted, run: Run, workspace: Workspace) -> Measured:
    return Measured({"weights": [float(weight.detach().sum()) for weight in fitted.detector.model.parameters()]})


def break_down(fitted: Fitted, run: Run, workspace: Workspace) -> Measured:
    raise RuntimeError("out of memory")


@pytest.fixture
def steps_for_seconds(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A clock that moves on by a second when a training step looks at it."""
    clock = itertools.count()
    with monkeypatch.context() as patched:
        patched.setattr("experiments.execution.time", SimpleNamespace(time=lambda: next(clock)))
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
    expected = {"experiment": "table1", "method": "duq", "in": "cifar10", "out": ["svhn"], "members": 1, "seed": 0}
    assert {name: fields[name] for name in expected} == expected
    assert set(fields["scores"]) == {*scores_for("distances"), "nearest-neighbour", "class-gaussian", "combined"}
    for sets in fields["scores"].values():
        assert set(sets) == {"svhn"}
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
        execute(run, measure_nothing, workspace, deadline=steps_per_epoch + 2)  # in the second epoch
    assert not workspace.record(run).exists()
    with pytest.raises(RuntimeError, match="out of memory"):
        execute(run, break_down, workspace)  # when training is over
    continued = execute(run, measure_nothing, workspace)
    assert continued["provenance"]["first_step"] == 3 * steps_per_epoch
    whole = execute(run, measure_nothing, Workspace(tmp_path / "others", workspace.data_dir, "cpu"))
    assert continued["weights"] == whole["weights"]


@pytest.mark.usefixtures("steps_for_seconds")
def test_a_record_says_where_a_run_was_continued(workspace: Workspace, small: Small) -> None:
    (run,) = table1_runs("fashion-mnist", [0], [*small["fashion-mnist"], "training.epochs=6"], methods=["softmax"])
    with pytest.raises(TimeUpError):
        execute(run, measure_nothing, workspace, deadline=3)  # a step is an epoch here
    assert execute(run, measure_nothing, workspace)["provenance"]["first_step"] == 3


def test_runs_of_one_seed_begin_with_one_plain_network(workspace: Workspace, small: Small, tmp_path: Path) -> None:
    changes = [*small["cifar10"], "pretraining={epochs: 2, batch_size: 64}"]
    duq, gaussian = table1_runs("cifar10", [0], changes, methods=["duq", "gaussian"])
    execute(duq, measure_nothing, workspace)
    (kept,) = workspace.plain_networks.iterdir()
    written = kept.stat().st_mtime_ns
    shared = execute(gaussian, measure_nothing, workspace)
    assert [path.stat().st_mtime_ns for path in workspace.plain_networks.iterdir()] == [written]
    alone = execute(gaussian, measure_nothing, Workspace(tmp_path / "others", workspace.data_dir, "cpu"))
    assert shared["weights"] == alone["weights"]
    (other_seed,) = table1_runs("cifar10", [1], changes, methods=["gaussian"])
    execute(other_seed, measure_nothing, workspace)
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
        execute(run, measure_nothing, workspace, deadline=deadline)
    continued = execute(run, measure_nothing, workspace)
    assert continued["provenance"]["first_step"] == deadline
    whole = execute(run, measure_nothing, Workspace(tmp_path / "others", workspace.data_dir, "cpu"))
    assert continued["weights"] == whole["weights"]


def test_a_run_that_another_table_has_is_not_done_twice(workspace: Workspace, small_besnn: tuple[str, ...]) -> None:
    (run,) = table1_runs("fashion-mnist", [0], small_besnn, methods=["be-snn"])
    fields = execute(run, measure_nothing, workspace)
    twin = next(each for each in table3_runs("fashion-mnist", [0], small_besnn) if each.recipe == run.recipe)
    copied = execute(twin, break_down, workspace)
    assert copied == fields | {"experiment": "table3", "same_run_as": "table1/fashion-mnist-be-snn-n4-seed0.json"}
    assert read_record(workspace.record(twin)) == copied
