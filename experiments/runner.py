"""Execute runs, from their recipes to their records: resumable, one after the other or side by side on one device."""

import contextlib
import logging
import multiprocessing
import os
import shutil
import time
import warnings
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

import torch

from besnn.data import Dataset, load
from besnn.errors import BesnnError, one_line
from besnn.training.device import make_fabric
from besnn.training.fit import Fitted, fit_detector
from besnn.training.progress import Reporter
from besnn.training.record import model_fields, provenance, read_record, write_record
from experiments.detector import keep_weights, kept_network
from experiments.runs import Measured, Run, Workspace, find_twin, is_recorded

Measure = Callable[[Fitted, Run, Workspace], Measured]
"""What a run measures. It is passed to other processes, so it must be a function at the top level of a module."""


class TimeUpError(BesnnError):
    """A run was stopped on purpose; the next call continues from its checkpoint."""


class Watch(Reporter):
    """Stops training at a deadline, in seconds since the epoch, or when the parent process has ended."""

    def __init__(self, deadline: float = float("inf")) -> None:
        self.deadline = deadline
        self.first_step = 0

    def start(self, done: int, total: int) -> None:
        """Note the number of steps before training began or continued."""
        self.first_step += done

    def step(self) -> None:
        """Stop if the time is up."""
        parent = multiprocessing.parent_process()
        if time.time() >= self.deadline or (parent is not None and not parent.is_alive()):
            raise TimeUpError("stopped: the same command continues from the checkpoint")


class Status(StrEnum):
    """What became of a run."""

    DONE = "done"
    FAILED = "failed"
    LEFT = "left"


@dataclass(frozen=True)
class Outcome:
    """How a run ended: its status, and a message of one line."""

    status: Status
    message: str = ""


@dataclass(frozen=True)
class Plan:
    """How runs are executed: so many workers at a time, until a deadline in seconds since the epoch."""

    measure: Measure
    workspace: Workspace
    workers: int = 1
    deadline: float = float("inf")


def run_all(
    runs: Sequence[Run],
    measure: Measure,
    workspace: Workspace,
    *,
    workers: int = 1,
    time_limit: float | None = None,
    say: Callable[[str], None] = print,
) -> None:
    """Execute the runs that have no record yet; if one fails, the others continue.

    After `time_limit` seconds it stops; the next call continues the unfinished runs. `say` gets one line per finished run.

    Raises:
        BesnnError: some runs failed or are unfinished.
    """
    pending = [run for run in runs if not is_recorded(run, workspace)]
    if len(pending) < len(runs):
        say(f"{len(runs) - len(pending)} of {len(runs)} runs are recorded already")
    deadline = float("inf") if time_limit is None else time.time() + time_limit
    plan = Plan(measure, workspace, workers, deadline)
    seen: list[Status] = []
    with contextlib.closing((_one_by_one if workers == 1 else _side_by_side)(pending, plan)) as outcomes:
        for run, outcome in outcomes:
            seen.append(outcome.status)
            say(f"[{len(seen)}/{len(pending)}] {run.experiment}/{run.name}: {outcome.status} {outcome.message}".rstrip())
    if failed := seen.count(Status.FAILED):
        raise BesnnError(f"{failed} of {len(pending)} runs failed for the reasons above: the same command tries them again")
    if left := seen.count(Status.LEFT):
        raise BesnnError(f"{left} of {len(pending)} runs are left: the same command continues with them")


def _one_by_one(runs: Sequence[Run], plan: Plan) -> Generator[tuple[Run, Outcome]]:
    for run in runs:
        yield run, _attempt(run, plan) if time.time() < plan.deadline else Outcome(Status.LEFT)


def _side_by_side(runs: Sequence[Run], plan: Plan) -> Generator[tuple[Run, Outcome]]:
    context = multiprocessing.get_context("spawn")  # a forked process cannot use CUDA
    waiting = list(runs)
    running: dict[Connection, tuple[Run, BaseProcess]] = {}
    try:
        while waiting or running:
            while waiting and len(running) < plan.workers and time.time() < plan.deadline:
                run = waiting.pop(0)
                receiver, sender = context.Pipe(duplex=False)
                process: BaseProcess = context.Process(target=_work, args=(run, plan, sender))
                process.start()
                sender.close()  # then only the worker holds this end, and its death closes the pipe
                running[receiver] = run, process
            if not running:
                break
            for ready in wait(list(running)):
                assert isinstance(ready, Connection)
                run, process = running.pop(ready)
                yield run, _received(ready, process)
    finally:
        for _, process in running.values():
            process.terminate()
            process.join()
    yield from ((run, Outcome(Status.LEFT)) for run in waiting)


def _received(receiver: Connection, process: BaseProcess) -> Outcome:
    try:
        outcome: Outcome | None = receiver.recv()
    except EOFError:
        outcome = None
    process.join()
    return outcome or Outcome(Status.FAILED, f"its process ended with exit code {process.exitcode}")


def _work(run: Run, plan: Plan, sender: Connection) -> None:
    warnings.simplefilter("ignore")
    logging.disable(logging.INFO)
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // plan.workers))
    with contextlib.suppress(KeyboardInterrupt):  # the parent process gets it too, and decides
        sender.send(_attempt(run, plan))


def _attempt(run: Run, plan: Plan) -> Outcome:
    try:
        fields = execute(run, plan.measure, plan.workspace, deadline=plan.deadline, parallel=plan.workers)
    except TimeUpError:
        return Outcome(Status.LEFT)
    except Exception as error:  # whatever goes wrong in one run, the others continue
        reason = one_line(str(error)) or "no message"
        return Outcome(Status.FAILED, reason if isinstance(error, BesnnError) else f"{type(error).__name__}: {reason}")
    return Outcome(Status.DONE, f"in {fields['seconds']:.0f} s")


def execute(
    run: Run, measure: Measure, workspace: Workspace, *, deadline: float = float("inf"), parallel: int = 1
) -> dict[str, Any]:
    """Train, measure, and write and return the record; an interrupted run continues from its checkpoint.

    `parallel`, the number of runs that share the device, is recorded, since `seconds` depends on it.
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
    training = load(run.recipe.data.source, split="train", data_dir=workspace.data_dir)
    fitted = kept_network(run, workspace, training)
    if fitted is not None:
        trained = {field: fitted.detector.provenance.get(field) for field in ("date", "commit", "hardware")}
        return make_record(run, fitted, measure(fitted, run, workspace), training, trained=trained)
    fitted = fit_detector(
        run.recipe,
        training,
        fabric=make_fabric(run.recipe.training.precision, workspace.accelerator),
        run_folder=workspace.scratch(run),
        resume=True,
        reporter=watch,
        plain_networks=workspace.plain_networks,
    )
    if workspace.keep_weights:
        keep_weights(fitted.detector, workspace.weights(run))
    measured = measure(fitted, run, workspace)
    return make_record(run, fitted, measured, training, first_step=watch.first_step, parallel_runs=parallel)


def make_record(run: Run, fitted: Fitted, measured: Measured, training: Dataset, **circumstances: object) -> dict[str, Any]:
    """Return the record of a run; `circumstances` are added to its provenance."""
    data = [training, *measured.data]
    hashes = {file: digest for each in data for file, digest in each.hashes.items()}
    origin = provenance(hashes, fitted.detector.device)
    origin["data_note"] = "; ".join(f"{each.name}: {each.note}" for each in data if each.note)
    return {
        "experiment": run.experiment,
        "variant": run.variant,
        "in": run.in_name,
        "out": list(run.unknown),
        **fitted.detector.provenance["measured"],
        **measured.fields,
        "seconds": fitted.detector.provenance["seconds"],
        **model_fields(fitted.detector.model, run.recipe),
        "provenance": origin | circumstances,
    }
