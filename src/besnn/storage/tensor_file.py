"""The container of model files and checkpoints: a safetensors file with a JSON header and a digest over all of it.

Reading one runs nothing that is in it.
"""

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load, save
from torch import Tensor

from besnn.errors import DataError, one_line
from besnn.storage.files import atomic_path

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
    with _readable(path, kind):
        # once and whole: another file may take its place meanwhile, and tensors mapped to the file would change with it
        content = path.read_bytes()
        tensors = load(content)
    metadata = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")]).get("__metadata__")
    header = _parse_header(metadata, path, kind)
    # The text, too, must be the one that was written: JSON has several ways to say the same.
    if json.dumps(header) != metadata["besnn"] or header.pop("sha256", None) != _digest(tensors, header):
        raise DataError(f"{kind.noun} {path} was altered after it was written (its digest does not match): {kind.remedy}")
    return tensors, header


def read_header(path: Path, kind: FileKind) -> Header:
    """The header alone, without reading the tensors; it is not checked against the digest."""
    with _readable(path, kind), safe_open(path, framework="pt") as file:
        metadata = file.metadata()
    return _parse_header(metadata, path, kind)


@contextmanager
def _readable(path: Path, kind: FileKind) -> Iterator[None]:
    """Says in one line why a file cannot be read as safetensors."""
    if not path.exists():
        raise DataError(f"{kind.noun} {path} does not exist: check the path")
    try:
        yield
    except (SafetensorError, OSError, KeyError) as error:  # a KeyError for a type of number that torch has not
        if path.is_dir():
            raise DataError(f"{path} is a folder, not a {kind.noun}: name a file") from None
        raise DataError(
            f"{kind.noun} {path} is truncated, damaged or no safetensors file ({one_line(error)}): {kind.remedy}"
        ) from None


def _parse_header(metadata: dict[str, str] | None, path: Path, kind: FileKind) -> Header:
    try:
        header: Header = json.loads((metadata or {})["besnn"])
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


def _digest(tensors: Tensors, header: Header) -> str:
    """SHA-256 over the header and every tensor's name, type, shape and bytes."""
    sha = hashlib.sha256(json.dumps(header).encode())
    for name in sorted(tensors):
        value = tensors[name]
        sha.update(f"{name}|{value.dtype}|{list(value.shape)}|".encode())
        sha.update(value.contiguous().flatten().view(torch.uint8).numpy().data)
    return sha.hexdigest()
