"""The container of model files and checkpoints: a safetensors file with a JSON header and a digest over all of it.

Reading one executes nothing that is in it.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load, save
from torch import Tensor

from besnn.errors import DataError, one_line
from besnn.storage.files import whole_file
from besnn.storage.signature import check_signature

Tensors = dict[str, Tensor]
Header = dict[str, Any]


@dataclass(frozen=True)
class FileKind:
    """A kind of file that uses the container."""

    format: str
    version: int  # that this besnn writes, and the newest that it reads
    noun: str  # what messages call such a file
    remedy: str  # what messages suggest for a bad file
    finite: bool = False  # whether NaN and infinite numbers are refused


MODEL_FILE = FileKind("besnn-detector", 1, "model file", "get a fresh copy, or one made by `besnn train`", finite=True)


def write_tensor_file(path: Path, kind: FileKind, tensors: Tensors, header: Header) -> None:
    """Write tensors and a JSON-able header atomically."""
    with whole_file(path) as partial:  # not by save_file, whose own temporary file would outlive a killed writer
        partial.write_bytes(tensor_file_bytes(kind, tensors, header))


def tensor_file_bytes(kind: FileKind, tensors: Tensors, header: Header) -> bytes:
    """Return the content of a file with these tensors and this JSON-able header."""
    # copies: safetensors refuses tensors that share memory, as tied weights do
    tensors = {name: value.detach().to("cpu", copy=True).contiguous() for name, value in tensors.items()}
    header = {**header, "format": kind.format, "version": kind.version}
    header["sha256"] = _digest(tensors, header)
    content: bytes = save(tensors, metadata={"besnn": json.dumps(header)})
    return content


def read_tensor_file(path: Path, kind: FileKind, key: bytes | None = None) -> tuple[Tensors, Header]:
    """Return the tensors and header of a file that is complete and unaltered; with a key, nothing is parsed unless signed."""
    with _readable(path, kind):
        if key is None:
            with safe_open(path, framework="pt"):  # refuses a file whose size is not what its header says, before it is read
                pass
        content = path.read_bytes()  # at once: tensors mapped to the file would change with it
    check_signature(path, content, key)
    return parse_tensor_file(content, kind, path)


def parse_tensor_file(content: bytes, kind: FileKind, path: Path | None = None) -> tuple[Tensors, Header]:
    """Return the tensors and header in a file's content; `path` is for messages."""
    with _readable(path, kind):
        tensors = load(content)
    metadata = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")]).get("__metadata__")
    header = _parse_header(metadata, path, kind)
    # Compare the text, too: JSON has several ways to write the same values.
    if json.dumps(header) != metadata["besnn"] or header.pop("sha256", None) != _digest(tensors, header):
        raise DataError(f"{_name(path, kind)} was altered after it was written (its digest does not match): {kind.remedy}")
    for name, value in tensors.items() if kind.finite else ():
        if value.is_floating_point() and not bool(torch.isfinite(value.double()).all()):
            raise DataError(f"{_name(path, kind)} contains NaN or infinite numbers in {name!r}: train the model again")
    return tensors, header


@contextmanager
def _readable(path: Path | None, kind: FileKind) -> Iterator[None]:
    """Turn errors of reading a safetensors file into one line."""
    if path is not None and not path.exists():
        raise DataError(f"{kind.noun} {path} does not exist: check the path")
    if path is not None and not path.is_file():  # opening a pipe would wait forever
        raise DataError(f"{path} is a {'folder' if path.is_dir() else 'pipe or device'}, not a {kind.noun}: name a file")
    try:
        yield
    except MemoryError:
        raise DataError(f"{_name(path, kind)} does not fit into memory: {kind.remedy}") from None
    except (SafetensorError, OSError, LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
        reason = f"is truncated, damaged or not a safetensors file ({one_line(error)})"
        raise DataError(f"{_name(path, kind)} {reason}: {kind.remedy}") from None


def _parse_header(metadata: dict[str, str] | None, path: Path | None, kind: FileKind) -> Header:
    name = _name(path, kind)
    try:
        header: Header = json.loads((metadata or {})["besnn"])
        found, version = header["format"], header["version"]
    except (KeyError, TypeError, ValueError, RecursionError):
        raise DataError(f"{name} is a safetensors file but not a besnn {kind.noun}: {kind.remedy}") from None
    if found != kind.format or not isinstance(version, int) or version < 1:
        raise DataError(f"{name} has format {found!r}, which is not a besnn {kind.noun}: {kind.remedy}")
    if version > kind.version:
        raise DataError(f"{name} has format version {version}, newer than this besnn reads ({kind.version}): upgrade besnn")
    return header


def _name(path: Path | None, kind: FileKind) -> str:
    return f"the {kind.noun}" if path is None else f"{kind.noun} {path}"


def _digest(tensors: Tensors, header: Header) -> str:
    """Compute SHA-256 over the header and every tensor's name, type, shape and bytes."""
    sha = hashlib.sha256(json.dumps(header).encode())
    for name in sorted(tensors):
        value = tensors[name]
        sha.update(f"{name}|{value.dtype}|{list(value.shape)}|".encode())
        sha.update(value.contiguous().flatten().view(torch.uint8).numpy().data)
    return sha.hexdigest()


def under(prefix: str, tensors: Mapping[str, Tensor]) -> Tensors:
    """Return the tensors whose names begin with a prefix, without it."""
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
