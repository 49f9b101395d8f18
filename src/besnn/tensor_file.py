"""The container of model files and checkpoints: a safetensors file with a JSON header and a digest over all of it.

Reading one runs nothing that is in it.
"""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from besnn.errors import DataError
from besnn.files import atomic_path

Tensors = dict[str, Tensor]
Header = dict[str, Any]


@dataclass(frozen=True)
class FileKind:
    """A use of the container.

    Attributes:
        format: what the file says it is.
        version: the newest version of that format which this besnn knows, and writes.
        noun: what to call such a file.
        remedy: what to do about a bad one.
    """

    format: str
    version: int
    noun: str
    remedy: str


def write_tensor_file(path: Path, kind: FileKind, tensors: Tensors, header: Header) -> None:
    """Writes tensors and a JSON-able header atomically."""
    # copies: safetensors refuses tensors that share memory, as tied weights do
    tensors = {name: value.detach().to("cpu", copy=True).contiguous() for name, value in tensors.items()}
    header = {**header, "format": kind.format, "version": kind.version}
    header["sha256"] = _digest(tensors, header)
    with atomic_path(path) as partial:  # not by save_file, whose own temporary file would outlive a killed writer
        partial.write_bytes(save(tensors, metadata={"besnn": json.dumps(header)}))


def read_tensor_file(path: Path, kind: FileKind) -> tuple[Tensors, Header]:
    """Tensors and header of a file that is whole and unaltered; else says what is wrong with it."""
    header = read_header(path, kind)
    try:
        with safe_open(path, framework="pt") as file:
            text = file.metadata()["besnn"]
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # not a dict
    except (SafetensorError, OSError) as error:
        raise _unreadable(path, kind, error) from None
    # The text, too, must be the one that was written: JSON has several ways to say the same.
    if json.dumps(header) != text or header.pop("sha256", None) != _digest(tensors, header):
        raise DataError(f"{kind.noun} {path} was altered after it was written (its digest does not match): {kind.remedy}")
    return tensors, header


def read_header(path: Path, kind: FileKind) -> Header:
    """The header alone, without reading the tensors; it is not checked against the digest."""
    if not path.exists():
        raise DataError(f"{kind.noun} {path} does not exist: check the path")
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
    except (SafetensorError, OSError) as error:
        raise _unreadable(path, kind, error) from None
    try:
        header: Header = json.loads(metadata["besnn"])
        found, version = header["format"], header["version"]
    except (KeyError, TypeError, ValueError, RecursionError):
        raise DataError(f"{path} is a safetensors file but no besnn {kind.noun}: {kind.remedy}") from None
    if found != kind.format or not isinstance(version, int) or version < 1:
        raise DataError(f"{path} is of format {found!r}, which is no besnn {kind.noun}: {kind.remedy}")
    if version > kind.version:
        raise DataError(
            f"{kind.noun} {path} has format version {version}, newer than this besnn reads ({kind.version}): upgrade besnn"
        )
    return header


def _unreadable(path: Path, kind: FileKind, error: Exception) -> DataError:
    if path.is_dir():
        return DataError(f"{path} is a folder, not a {kind.noun}: name a file")
    reason = " ".join(str(error).split())
    return DataError(f"{kind.noun} {path} is truncated, damaged or no safetensors file ({reason}): {kind.remedy}")


def _digest(tensors: Tensors, header: Header) -> str:
    """SHA-256 over the header and every tensor's name, type, shape and bytes."""
    sha = hashlib.sha256(json.dumps(header).encode())
    for name in sorted(tensors):
        value = tensors[name]
        sha.update(f"{name}|{value.dtype}|{list(value.shape)}|".encode())
        sha.update(value.contiguous().flatten().view(torch.uint8).numpy().data)
    return sha.hexdigest()
