"""Where a result comes from: versions, commit, hardware, date."""

import datetime
import functools
import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path

import torch

CPU = torch.device("cpu")
PACKAGES = ("besnn", "torch", "lightning", "numpy", "scikit-learn", "safetensors")


def provenance(data_hashes: dict[str, str], device: torch.device = CPU) -> dict[str, object]:
    """The record of the circumstances of a run on a device, JSON-able."""
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": source_commit(),
        "versions": {"python": platform.python_version()} | {name: _version(name) for name in PACKAGES},
        "hardware": hardware(device),
        "data": data_hashes,
    }


@functools.cache  # the code that runs is the one that was imported
def source_commit() -> str | None:
    """The commit of the checkout that besnn runs from, with `+` where files were changed; None when installed from a wheel.

    Where a copy of the checkout runs without its history, `$BESNN_COMMIT` says what it is a copy of.
    """
    if named := os.environ.get("BESNN_COMMIT"):
        return named
    folder = Path(__file__).parent
    try:
        _git(folder, "ls-files", "--error-unmatch", __file__)  # fails where besnn merely lies inside somebody's repository
        changed = _git(folder, "status", "--porcelain", "--untracked-files=no")
        return _git(folder, "rev-parse", "HEAD") + ("+" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def hardware(device: torch.device) -> str:
    """The processor or accelerator, in words."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{device.type} ({platform.machine()}), {torch.get_num_threads()} threads"


def _git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
