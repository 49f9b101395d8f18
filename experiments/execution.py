"""One run, from its recipe to its record."""

import multiprocessing
import shutil
import time
from collections.abc import Callable
from typing import Any

import torch

from besnn.data import Dataset, load
from besnn.errors import BesnnError
from besnn.training.device import make_fabric
from besnn.training.fit import Fitted, fit_detector
from besnn.training.progress import Reporter
from besnn.training.record import model_fields, provenance, read_record, write_record
from experiments.detection import Measured
from experiments.runs import Run, Workspace, find_twin
from experiments.trained import keep_weights

Measure = Callable[[Fitted, Run, Workspace], Measured]
"""Finds out what a run is for. It is handed to other processes, so it is a function of a module, not of another function."""


class TimeUpError(BesnnError):
    """A run was stopped on purpose; it continues from its checkpoint another time."""


class Watch(Reporter):
    """Stops training when its time is up, or when the process that asked for it is gone.

    Args:
        deadline: in seconds since the epoch, a clock that processes share.
    """

    def __init__(self, deadline: float = float("inf")) -> None:
        self.deadline = deadline
        self.first_step = 0

    def start(self, done: int, total: int) -> None:
        """Notes where training begins or continues: how many steps of all were taken before."""
        self.first_step += done

    def step(self) -> None:
        """Looks at the clock."""
        parent = multiprocessing.parent_process()
        if time.time() >= self.deadline or (parent is not None and not parent.is_alive()):
            raise TimeUpError("stopped: the same command continues from the checkpoint")


def execute(
    run: Run, measure: Measure, workspace: Workspace, *, deadline: float = float("inf"), parallel: int = 1
) -> dict[str, Any]:
    """Trains, measures and writes the record, which is returned; an interrupted run continues from its checkpoint.

    Args:
        run: what to do.
        measure: what to find out.
        workspace: where to read and write.
        deadline: when to stop training, in seconds since the epoch; see `TimeUpError`.
        parallel: how many runs share the device; it is recorded, since it tells what `seconds` is worth.
    """
    path, scratch = workspace.record(run), workspace.scratch(run)
    if (twin := find_twin(run, workspace)) is not None:
        fields = read_record(twin) | {"experiment": run.experiment, "variant": run.variant}
        fields["same_run_as"] = twin.relative_to(workspace.results).as_posix()
    else:
        fields = _train_and_measure(run, measure, workspace, Watch(deadline), parallel)
    write_record(path, fields)
    shutil.rmtree(scratch, ignore_errors=True)
    return fields


def _train_and_measure(run: Run, measure: Measure, workspace: Workspace, watch: Watch, parallel: int) -> dict[str, Any]:
    recipe = run.recipe
    training = load(recipe.data.source, split="train", data_dir=workspace.data_dir)
    fabric = make_fabric(recipe.training.precision, workspace.accelerator)
    fitted = fit_detector(
        recipe,
        training,
        fabric=fabric,
        run_folder=workspace.scratch(run),
        resume=True,
        reporter=watch,
        plain_networks=workspace.plain_networks,
    )
    if workspace.keep_weights:
        keep_weights(fitted.detector, workspace.weights(run))
    measured = measure(fitted, run, workspace)
    return make_record(run, fitted, measured, training, fabric.device, first_step=watch.first_step, parallel_runs=parallel)


def make_record(
    run: Run, fitted: Fitted, measured: Measured, training: Dataset, device: torch.device, **circumstances: int
) -> dict[str, Any]:
    """The record of a run; `circumstances` are what its provenance says besides."""
    data = [training, *measured.data]
    origin = provenance({file: digest for each in data for file, digest in each.hashes.items()}, device)
    origin["data_note"] = "; ".join(f"{each.name}: {each.note}" for each in data if each.note)
    return {
        "experiment": run.experiment,
        "variant": run.variant,
        "in": run.in_name,
        "out": list(run.unknown),
        **measured.fields,
        "seconds": fitted.detector.provenance["seconds"],
        **model_fields(fitted.detector.model, run.recipe),
        "provenance": origin | circumstances,
    }
