"""besnn's model file: one safetensors file, tensors and a JSON header. Reading it runs nothing that is in it."""

import hashlib
import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from besnn.errors import DataError
from besnn.files import atomic_path

FORMAT = "besnn-detector"
VERSION = 1


def write_model_file(path: Path, tensors: dict[str, Tensor], header: dict[str, Any]) -> None:
    """Writes tensors and header atomically, with a digest over both."""
    tensors = {name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()}
    header = {**header, "format": FORMAT, "version": VERSION}
    header["digest"] = _digest(tensors, header)
    with atomic_path(path) as partial:
        save_file(tensors, partial, metadata={"besnn": json.dumps(header, ensure_ascii=False)})


def read_model_file(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and header of a file that is whole, unaltered and of a known version; else says what is wrong with it."""
    if not path.is_file():
        raise DataError(f"model file {path} does not exist: train one with `besnn train DATA -o {path}`")
    header = read_header(path)
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # not a dict
    except (SafetensorError, OSError) as error:
        raise _unreadable(path, error) from None
    if _digest(tensors, header) != header.get("digest"):
        raise DataError(f"model file {path} was altered after it was written (its digest does not match): get a fresh copy")
    for name, value in tensors.items():
        if value.is_floating_point() and not bool(torch.isfinite(value.float()).all()):
            raise DataError(f"model file {path} holds NaN or infinite numbers in {name!r}: train the model again")
    return tensors, header


def read_header(path: Path) -> dict[str, Any]:
    """The header alone, without reading the tensors."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
    except (SafetensorError, OSError) as error:
        raise _unreadable(path, error) from None
    try:
        header = json.loads(metadata["besnn"])
        if header["format"] != FORMAT or not isinstance(header["version"], int):
            raise KeyError(header["format"])
    except (KeyError, TypeError, json.JSONDecodeError):
        raise DataError(f"{path} is a safetensors file but not a besnn model: use one written by `besnn train`") from None
    if header["version"] > VERSION:
        raise DataError(
            f"model file {path} has format version {header['version']}, newer than this besnn reads ({VERSION}): upgrade besnn"
        )
    assert isinstance(header, dict)
    return header


def _unreadable(path: Path, error: Exception) -> DataError:
    return DataError(f"model file {path} is truncated, damaged or no safetensors file ({error}): get a fresh copy")


def _digest(tensors: dict[str, Tensor], header: dict[str, Any]) -> str:
    """SHA-256 over the header (its own digest aside) and every tensor's name, type, shape and bytes."""
    sha = hashlib.sha256()
    rest = {name: value for name, value in header.items() if name != "digest"}
    sha.update(json.dumps(rest, sort_keys=True, ensure_ascii=False).encode())
    for name in sorted(tensors):
        value = tensors[name]
        sha.update(f"{name}|{value.dtype}|{list(value.shape)}|".encode())
        sha.update(value.contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return sha.hexdigest()
