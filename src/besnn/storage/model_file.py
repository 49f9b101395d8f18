"""besnn's model file: what a detector is saved as."""

from pathlib import Path

import torch

from besnn.errors import DataError
from besnn.storage import tensor_file
from besnn.storage.tensor_file import FileKind, Header, Tensors, read_tensor_file, write_tensor_file

MODEL_FILE = FileKind("besnn-detector", version=1, noun="model file", remedy="get a fresh copy, or one made by `besnn train`")


def write_model_file(path: Path, tensors: Tensors, header: Header) -> None:
    """Writes tensors and header atomically, with a digest over both."""
    write_tensor_file(path, MODEL_FILE, tensors, header)


def read_model_file(path: Path) -> tuple[Tensors, Header]:
    """Tensors and header of a file that is whole, unaltered, finite and of a known version; else says what is wrong with it."""
    tensors, header = read_tensor_file(path, MODEL_FILE)
    for name, value in tensors.items():
        if value.is_floating_point() and not bool(torch.isfinite(value.double()).all()):
            raise DataError(f"model file {path} holds NaN or infinite numbers in {name!r}: train the model again")
    return tensors, header


def read_header(path: Path) -> Header:
    """The header alone, without reading the tensors."""
    return tensor_file.read_header(path, MODEL_FILE)
