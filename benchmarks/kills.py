"""Commands that write, killed at random moments and run on full disks: what they write is the old or the new, whole.

Half of the kills come at any moment, half right after the folder has changed, when something is being written. Then the same
command runs again, undisturbed: where it promises so, the outcome is that of a run that was never disturbed. A full disk is a
small tmpfs, where this user may mount one, and otherwise a limit on the size of files.
"""

import io
import json
import multiprocessing
import os
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from benchmarks.documents import Table, bench_record
from benchmarks.serve_fuzz import QUICK
from besnn.cli import main
from besnn.data import two_moons
from besnn.storage.tensor_file import MODEL_FILE, read_tensor_file, tensor_file_bytes

DISK = 64 * 2**20
MOMENT = 0.02  # seconds after a change of the folder within which the process is killed


@dataclass(frozen=True)
class Step:
    """A command that writes, the files it writes, and what to add to run it again."""

    arguments: tuple[str, ...]
    outputs: tuple[str, ...]
    again: tuple[str, ...] = ()
    repeatable: bool = True  # whether it promises the same outcome if it has come to its end already


TINY = [f"--set={each}" for each in [*QUICK[1:], "backbone.hidden=[16]"]]
STEPS = {
    "train": Step(("train", "two-moons", "-o", "new.safetensors", "--epochs=6", *TINY), ("new.safetensors",), ("--resume",)),
    "calibrate": Step(("calibrate", "model.safetensors", "moons.csv", "--alpha=0.1"), ("model.safetensors",)),
    "score": Step(("score", "model.safetensors", "inbox.csv", "-o", "scores.parquet"), ("scores.parquet",)),
    "wrap": Step(("wrap", "moons.csv", "-o", "wrapped.safetensors"), ("wrapped.safetensors",)),
    "triage --apply": Step(
        ("triage", "model.safetensors", "inbox.csv", "-o", "triage", "--apply", "--data", "moons.csv"),
        ("triage/training.parquet", "triage/calibration.parquet"),
    ),
    "monitor --state": Step(
        ("monitor", "scores.csv", "--model", "model.safetensors", "--state", "drift.sqlite"),
        ("drift.sqlite",),
        repeatable=False,
    ),
}


SERVER = multiprocessing.get_context("forkserver")
"""Has imported what the commands need, and forks: otherwise most kills would come while a command imports."""
SERVER.set_forkserver_preload(
    [
        *("benchmarks.__main__", "benchmarks.kills", "besnn.cli.loading", "besnn.training.fit", "besnn.batch", "besnn.triage"),
        *(
            "besnn.wrapping.embeddings",
            "besnn.detection.drift",
            "torch.export",
            "torch.utils.tensorboard",
            "sklearn.linear_model",
        ),
    ]
)


def start(folder: Path, *arguments: str, file_bytes: int = -1) -> BaseProcess:
    """Start a command of besnn in a folder, with a limit on the size of the files that it writes if it is not negative."""
    process = SERVER.Process(target=_run, args=(folder, arguments, file_bytes), name=f"besnn {' '.join(arguments)}")
    process.start()
    return process


def _run(folder: Path, arguments: tuple[str, ...], file_bytes: int) -> None:
    os.dup2(os.open(_errors(folder), os.O_WRONLY | os.O_CREAT | os.O_TRUNC), sys.stderr.fileno())
    os.chdir(folder)
    if file_bytes >= 0:
        resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, file_bytes))
    sys.argv = ["besnn", *arguments, "--quiet"]
    main()


def _errors(folder: Path) -> Path:
    """Return the file beside a folder that holds what the last command there said on standard error."""
    return folder.with_name(f"{folder.name}.errors")


def finish(folder: Path, process: BaseProcess, *codes: int) -> None:
    """Wait for a command to end with one of some exit codes and without a traceback."""
    process.join()
    errors = _errors(folder).read_text()
    if process.exitcode not in (codes or (0,)) or "Traceback" in errors:
        raise AssertionError(f"{process.name} ended with {process.exitcode}: {errors}")


def content(path: Path) -> bytes | None:
    """Return what a file holds, without what tells when it was made; None if there is none, an error if it is damaged."""
    if not path.exists():
        return None
    if path.suffix == ".safetensors":
        tensors, header = read_tensor_file(path, MODEL_FILE)
        if (program := tensors.pop("network/program", None)) is not None:  # a zip file with dates
            with zipfile.ZipFile(io.BytesIO(program.numpy().tobytes())) as archive:
                header["program"] = [(each.filename, each.CRC) for each in archive.infolist()]
        return tensor_file_bytes(MODEL_FILE, tensors, {**header, "provenance": None})
    if path.suffix == ".sqlite":
        with closing(sqlite3.connect(path)) as connection, suppress(sqlite3.OperationalError):  # no table yet
            return "".join(text for (text,) in connection.execute("SELECT document FROM drift")).encode()
        return b""
    return path.read_bytes()


def prepare(folder: Path) -> None:
    """Write what the steps read, and older versions of what they write."""
    moons, rng = two_moons(600, seed=6), np.random.default_rng(0)
    names = np.asarray(moons.class_names)[moons.labels]
    rows = [f"{x},{y},{name}" for (x, y), name in zip(moons.inputs, names, strict=True)]
    (folder / "moons.csv").write_text("\n".join(["x1,x2,label", *rows]))
    inbox = np.concatenate([two_moons(20_000, seed=5).inputs, rng.normal((9, 9), 0.2, (80, 2))])
    np.savetxt(folder / "inbox.csv", inbox, delimiter=",", header="x1,x2", comments="")
    finish(folder, start(folder, "train", "two-moons", "-o", "model.safetensors", "--epochs=8", *TINY))
    finish(folder, start(folder, "triage", "model.safetensors", "inbox.csv", "-o", "triage"))
    groups = folder / "triage" / "groups.yaml"
    named = yaml.safe_load(groups.read_text())
    named["groups"]["group-1"]["name"] = "far"
    groups.write_text(yaml.safe_dump(named))
    finish(folder, start(folder, "score", "model.safetensors", "moons.csv", "-o", "scores.csv"))
    finish(folder, start(folder, "score", "model.safetensors", "moons.csv", "-o", "scores.parquet"))
    finish(folder, start(folder, *STEPS["monitor --state"].arguments))
    for name in ("new.safetensors", "wrapped.safetensors"):
        shutil.copy(folder / "model.safetensors", folder / name)
    for name in STEPS["triage --apply"].outputs:
        shutil.copy(folder / "scores.parquet", folder / name)


def disturb(process: BaseProcess, folder: Path, seconds: float, rng: np.random.Generator) -> bool:
    """Kill a command at a random moment of its seconds, or soon after a change of its folder; return whether it still ran."""
    if rng.random() < 0.5:
        process.join(seconds * rng.random())
    else:
        before, changes = listing(folder), int(rng.integers(1, 4))
        while process.is_alive() and changes:
            time.sleep(MOMENT / 20)
            if (now := listing(folder)) != before:
                before, changes = now, changes - 1
        time.sleep(MOMENT * rng.random())
    process.kill()
    process.join()
    return process.exitcode == -signal.SIGKILL


def listing(folder: Path) -> list[str]:
    """Return the names of all files in a folder."""
    return sorted(os.path.join(place, name) for place, _, names in os.walk(folder) for name in names)


def check(step: Step, folder: Path, old: list[Any], new: list[Any]) -> None:
    """Compare what a disturbed command left with what was there and what should be there, and run it again."""
    found = [content(folder / name) for name in step.outputs]
    if not all(each in (*pair,) for each, pair in zip(found, zip(old, new, strict=True), strict=True)):
        raise AssertionError(f"{step.arguments}: {folder} holds neither the old nor the new output")
    finish(folder, start(folder, *step.arguments, *step.again))
    if (step.repeatable or found == old) and [content(folder / name) for name in step.outputs] != new:
        raise AssertionError(f"{step.arguments}: {folder} differs from an undisturbed run")


@contextmanager
def full_disk(folder: Path, left: int) -> Iterator[int]:
    """Leave so many bytes of the disk of a folder, if a tmpfs is mounted there; otherwise yield it as a limit for files."""
    if not os.path.ismount(folder):
        yield left
        return
    filler = folder / "filler"
    filler.write_bytes(bytes(max(0, shutil.disk_usage(folder).free - left)))
    yield -1
    filler.unlink()


def measure_step(step: Step, base: Path, kills: int, disks: int, rng: np.random.Generator) -> dict[str, Any]:
    """Run a step undisturbed, then killed and on full disks; return how often each came about."""
    seen: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "folder"
        shutil.copytree(base, folder)
        old, began = [content(folder / each) for each in step.outputs], time.monotonic()
        finish(folder, start(folder, *step.arguments))
        seconds, new = time.monotonic() - began, [content(folder / each) for each in step.outputs]
        size = 2 * sum((folder / each).stat().st_size for each in step.outputs)
        for disk in [False] * kills + [True] * disks:
            shutil.rmtree(folder)
            folder.mkdir()
            mounted = (
                disk
                and not subprocess.run(
                    ["mount", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", folder], capture_output=True
                ).returncode
            )
            try:
                shutil.copytree(base, folder, dirs_exist_ok=True)
                if disk:
                    with full_disk(folder, int(size * rng.random())) as limit:
                        process = start(folder, *step.arguments, file_bytes=limit)
                        finish(folder, process, 0, 1, 2)
                        seen["disk_full"] += process.exitcode != 0
                else:
                    seen["killed"] += disturb(start(folder, *step.arguments), folder, seconds, rng)
                seen["new"] += [content(folder / each) for each in step.outputs] == new
                check(step, folder, old, new)
            finally:
                if mounted:
                    subprocess.run(["umount", folder], check=True)
    return {"kills": kills, "disks": disks, "tmpfs": bool(disks) and mounted, "seconds": round(seconds, 1), **seen}


def measure_kills(kills: int, disks: int, seed: int, say: Callable[[str], None]) -> dict[str, Any]:
    """Disturb every step so many times; return the record."""
    runs, rng = [], np.random.default_rng(seed)
    with tempfile.TemporaryDirectory() as name:
        prepare(Path(name))
        for step in STEPS:
            runs.append({"step": step, **measure_step(STEPS[step], Path(name), kills, disks, rng)})
            say(json.dumps(runs[-1]))
    return bench_record("kills", {"runs": runs, "seed": seed})


def kills_table(record: Mapping[str, Any]) -> Table:
    """Return the record as a table."""
    rows = [
        (f"`besnn {run['step']}`", *(str(run.get(name, 0)) for name in ("kills", "killed", "disks", "disk_full", "new")))
        for run in record["runs"]
    ]
    head = ("Command", "Kills", "Before its end", "Full disks", "Refused in one line", "New output in place")
    return Table("Killed commands", head, rows, "In all other cases the old output was still in place.")
