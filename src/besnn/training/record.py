"""The record of a run: one JSON file with field names shared by all runs, and where its result comes from."""

import datetime
import functools
import json
import os
import platform
import subprocess
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from besnn.errors import DataError, one_line
from besnn.model import OODClassifier
from besnn.recipe.config import Recipe
from besnn.storage.files import whole_file
from besnn.version import __version__

CPU = torch.device("cpu")
PACKAGES = ("torch", "lightning", "numpy", "scikit-learn", "safetensors")


def model_fields(model: OODClassifier, recipe: Recipe | None) -> dict[str, object]:
    """Describe a model in a record: method, members, seed, parameters, and the whole recipe; a wrapped network has none."""
    return {
        "method": model.method,
        "members": model.members,
        "seed": None if recipe is None else recipe.training.seed,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "recipe": None if recipe is None else recipe.model_dump(mode="json"),
    }


def write_record(path: Path, fields: Mapping[str, object]) -> None:
    """Write a record atomically; NaN and infinity, which JSON lacks, are errors."""
    text = json.dumps(fields, indent=1, ensure_ascii=False, allow_nan=False)
    with whole_file(path) as partial:
        partial.write_text(f"{text}\n", encoding="utf-8")


def read_record(path: Path) -> dict[str, Any]:
    """Read the fields of a record."""
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{path} is not a record ({one_line(error)}): remove it to run it again") from None
    if not isinstance(fields, dict):
        raise DataError(f"{path} is not a record (it holds no fields): remove it to run it again")
    return fields


def provenance(data_hashes: dict[str, str], device: torch.device = CPU) -> dict[str, object]:
    """Describe where a result comes from: date, commit, versions, hardware and data, ready for JSON."""
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": source_commit(),
        "versions": {"python": platform.python_version(), "besnn": __version__} | {name: _version(name) for name in PACKAGES},
        "hardware": hardware(device),
        "data": data_hashes,
    }


@functools.cache  # the code that runs is the code that was imported
def source_commit() -> str | None:
    """Return the commit of besnn's checkout, with `+` if files were changed; None if besnn was installed from a wheel.

    For a copy of a checkout without its history, set `$BESNN_COMMIT`.
    """
    if named := os.environ.get("BESNN_COMMIT"):
        return named
    folder = Path(__file__).parent
    try:
        _git(folder, "ls-files", "--error-unmatch", __file__)  # fails where besnn merely lies inside another repository
        changed = _git(folder, "status", "--porcelain", "--untracked-files=no")
        return _git(folder, "rev-parse", "HEAD") + ("+" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def hardware(device: torch.device) -> str:
    """Name the processor or accelerator."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    threads = torch.get_num_threads()
    return f"{device.type} ({platform.machine()}), {threads} thread{'' if threads == 1 else 's'}"


def _git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
