"""The model file, which a detector is saved as."""

from pathlib import Path

import torch

from besnn.errors import DataError
from besnn.storage.tensor_file import (
    FileKind,
    Header,
    Tensors,
    parse_tensor_file,
    read_tensor_file,
    tensor_file_bytes,
    write_tensor_file,
)

MODEL_FILE = FileKind("besnn-detector", version=1, noun="model file", remedy="get a fresh copy, or one made by `besnn train`")


def write_model_file(path: Path, tensors: Tensors, header: Header) -> None:
    """Write tensors and header atomically, with a digest over both."""
    write_tensor_file(path, MODEL_FILE, tensors, header)


def read_model_file(path: Path) -> tuple[Tensors, Header]:
    """Return the tensors and header of a file that is complete, unaltered, finite and of a known version; otherwise raise."""
    return _finite(*read_tensor_file(path, MODEL_FILE), f"model file {path}")


def model_file_bytes(tensors: Tensors, header: Header) -> bytes:
    """Return the content of the file that `write_model_file` writes."""
    return tensor_file_bytes(MODEL_FILE, tensors, header)


def parse_model_file(content: bytes) -> tuple[Tensors, Header]:
    """Return the tensors and header in the content of a file, checked as by `read_model_file`."""
    return _finite(*parse_tensor_file(content, MODEL_FILE), "the model file")


def _finite(tensors: Tensors, header: Header, file: str) -> tuple[Tensors, Header]:
    for name, value in tensors.items():
        if value.is_floating_point() and not bool(torch.isfinite(value.double()).all()):
            raise DataError(f"{file} contains NaN or infinite numbers in {name!r}: train the model again")
    return tensors, header
