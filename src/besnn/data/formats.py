"""The official file formats of the built-in sets: from a file's unpacked bytes to images and labels."""

import io
import math
import struct
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from besnn.errors import DataError, one_line


@dataclass(frozen=True, eq=False)
class Records:
    """What a file holds; an idx file holds either images or labels.

    Attributes:
        images: `uint8 [n, c, h, w]`, or None.
        labels: `int64 [n]`, or None.
    """

    images: NDArray[np.uint8] | None
    labels: NDArray[np.int64] | None

    def __len__(self) -> int:
        return max(len(part) for part in (self.images, self.labels) if part is not None)


def parse_idx(content: bytes, name: str) -> Records:
    """Parse MNIST's format: a magic number, the sizes, then one byte a value.

    Example:
        >>> parse_idx(bytes([0, 0, 8, 1, 0, 0, 0, 2, 7, 4]), "labels-idx1-ubyte").labels
        array([7, 4])
    """
    dimensions = content[3] if len(content) >= 4 and content[:3] == b"\0\0\x08" else 0
    if dimensions not in (1, 3):
        raise DataError(f"{name} is not an idx file of images or labels (it begins with {content[:4].hex()!r})")
    header = 4 + 4 * dimensions
    if len(content) < header:
        raise DataError(f"{name} is cut short within its header: fetch it again")
    shape = struct.unpack(f">{dimensions}I", content[4:header])
    if len(content) != header + math.prod(shape):
        raise DataError(f"{name} holds {len(content) - header:,} values where its header says {list(shape)}: fetch it again")
    values = np.frombuffer(content, np.uint8, offset=header).reshape(shape).copy()  # the copy is writable
    return Records(values[:, None], None) if dimensions == 3 else Records(None, values.astype(np.int64))


def parse_cifar(content: bytes, name: str) -> Records:
    """Parse CIFAR-10's binary version: a label byte, then 3 x 32 x 32 pixel bytes, for every image.

    Example:
        >>> parse_cifar(bytes([9]) + bytes(3072), "data_batch_1.bin").images.shape
        (1, 3, 32, 32)
    """
    size = 1 + 3 * 32 * 32
    if not content or len(content) % size:
        raise DataError(f"{name} holds {len(content):,} bytes, not a multiple of {size}: fetch it again")
    records = np.frombuffer(content, np.uint8).reshape(-1, size)
    return Records(records[:, 1:].reshape(-1, 3, 32, 32), records[:, 0].astype(np.int64))


def parse_svhn(content: bytes, name: str) -> Records:
    """Parse SVHN's cropped digits: a Matlab file with `X [32, 32, 3, n]` and `y [n, 1]`, where 10 stands for digit 0."""
    from scipy.io import loadmat  # slow to import, and needed for this one set

    try:
        variables = loadmat(io.BytesIO(content), variable_names=("X", "y"))
        images, labels = variables["X"], variables["y"].ravel().astype(np.int64)
        if images.dtype != np.uint8 or images.shape != (32, 32, 3, len(labels)):
            raise ValueError(f"X is {images.dtype} {list(images.shape)} for {len(labels)} labels")
    except Exception as error:  # SciPy's reader raises nearly anything on a malformed file
        raise DataError(f"{name} is not an SVHN file of cropped digits ({one_line(error)}): fetch it again") from error
    return Records(np.ascontiguousarray(images.transpose(3, 2, 0, 1)), labels % 10)


PARSERS: dict[str, Callable[[bytes, str], Records]] = {"idx": parse_idx, "cifar": parse_cifar, "svhn": parse_svhn}
