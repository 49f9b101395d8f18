"""Many runs: one after the other, or several side by side on one device, each in a process of its own."""

import contextlib
import logging
import multiprocessing
import os
import time
import warnings
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

import torch

from besnn.errors import BesnnError, one_line
from experiments.execution import Measure, TimeUpError, execute
from experiments.runs import Run, Workspace, is_recorded


class Status(StrEnum):
    """What became of a run."""

    DONE = "done"
    FAILED = "failed"
    LEFT = "left"


@dataclass(frozen=True)
class Outcome:
    """A run's end.

    Attributes:
        status: done, failed, or left for another time.
        words: what there is to say of it, on one line.
    """

    status: Status
    words: str = ""


@dataclass(frozen=True)
class Plan:
    """How runs are gone through.

    Attributes:
        measure: what they are for.
        workspace: where they read and write.
        workers: how many go on at a time.
        deadline: when to stop, in seconds since the epoch.
    """

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
    """Executes the runs that have no record yet; one that fails is told of, and the others go on.

    Args:
        runs: what to do.
        measure: what the runs are to find out.
        workspace: where to read and write.
        workers: how many runs go on at a time.
        time_limit: stop after so many seconds; what is unfinished then continues at the next call.
        say: told what becomes of each run, a line at a time.

    Raises:
        BesnnError: not all runs are done now.
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
            say(f"[{len(seen)}/{len(pending)}] {run.experiment}/{run.name}: {outcome.status} {outcome.words}".rstrip())
    if failed := seen.count(Status.FAILED):
        raise BesnnError(f"{failed} of {len(pending)} runs failed: their lines say why, and the same command tries them again")
    if left := seen.count(Status.LEFT):
        raise BesnnError(f"{left} of {len(pending)} runs are left: the same command goes on with them")


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
                sender.close()  # the worker's end alone stays open, so that its death is noticed
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
    """The life of a worker process."""
    warnings.simplefilter("ignore")
    logging.disable(logging.INFO)
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // plan.workers))
    with contextlib.suppress(KeyboardInterrupt):  # the one who asked gets it too, and has the say
        sender.send(_attempt(run, plan))


def _attempt(run: Run, plan: Plan) -> Outcome:
    try:
        fields = execute(run, plan.measure, plan.workspace, deadline=plan.deadline, parallel=plan.workers)
    except TimeUpError:
        return Outcome(Status.LEFT)
    except Exception as error:  # whatever ails one run, the others go on
        reason = one_line(str(error)) or "no reason given"
        return Outcome(Status.FAILED, reason if isinstance(error, BesnnError) else f"{type(error).__name__}: {reason}")
    return Outcome(Status.DONE, f"in {fields['seconds']:.0f} s")
