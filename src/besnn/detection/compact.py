"""Compact storage of feature rows: 16 or 8 bits a number and one scale a row."""

from typing import Literal, get_args

import torch
from torch import Tensor

Storage = Literal["float16", "int8"]
STORAGES: tuple[Storage, ...] = get_args(Storage)


def encode_rows(rows: Tensor, storage: Storage) -> tuple[Tensor, Tensor]:
    """Rows as `codes · scale`, the scale chosen so that each row's largest number uses the codes' full range.

    The error of a number is at most 2⁻¹¹ of itself in float16, and 1/254 of its row's largest in int8.

    Args:
        rows: `[..., d]`.
        storage: the codes' type; a row costs 2 d + 4 bytes in float16 and d + 4 in int8.

    Returns:
        codes `[..., d]` and scales `[..., 1]` in float32.

    Example:
        >>> codes, scale = encode_rows(torch.tensor([[2.0, -1.0]]), "int8")
        >>> codes
        tensor([[127, -64]], dtype=torch.int8)
    """
    rows = rows.float()
    largest = rows.abs().amax(dim=-1, keepdim=True)
    scale = torch.where(largest > 0, largest, 1.0)
    if storage == "float16":
        return (rows / scale).half(), scale
    scale = scale / 127
    return (rows / scale).round().to(torch.int8), scale


def decode_rows(codes: Tensor, scale: Tensor) -> Tensor:
    """The rows that `encode_rows` stored, in float32.

    Example:
        >>> decode_rows(*encode_rows(torch.tensor([[2.0, -1.0]]), "float16"))
        tensor([[ 2., -1.]])
    """
    return codes.float() * scale
