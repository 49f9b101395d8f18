"""Tensors and arrays alike: work in torch on the caller's device, answer in the caller's kind."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from besnn.errors import InputError

Numbers = float | Sequence[float] | NDArray[Any]


def as_floating(values: Tensor | Numbers, name: str) -> Tensor:
    """A detached floating-point tensor of the same numbers, in float32 or better; NaN is refused.

    Whatever is not a floating-point tensor becomes float64, which holds every float32 exactly: ties stay ties.

    Example:
        >>> as_floating([1, 2], "scores")
        tensor([1., 2.], dtype=torch.float64)
    """
    if isinstance(values, Tensor):
        dtype = torch.promote_types(values.dtype, torch.float32) if values.is_floating_point() else torch.float64
        tensor = values.detach().to(dtype)
    else:
        try:
            tensor = torch.from_numpy(np.array(values, dtype=np.float64))
        except (TypeError, ValueError):
            raise InputError(f"{name} are not numbers: pass a tensor or an array of floats") from None
    if bool(torch.isnan(tensor).any()):
        raise InputError(f"{name} hold {int(torch.isnan(tensor).sum())} NaN: find where they come from, or drop them")
    return tensor


def as_integers(values: Tensor | Sequence[int] | NDArray[Any], name: str) -> Tensor:
    """An int64 tensor of the same whole numbers.

    Example:
        >>> as_integers([0, 2], "groups")
        tensor([0, 2])
    """
    array = np.asarray(values.detach().cpu() if isinstance(values, Tensor) else values)
    if array.size and array.dtype.kind not in "iu":
        raise InputError(f"{name} have dtype {array.dtype}: pass integers, such as predicted class indices")
    return torch.from_numpy(array.astype(np.int64))


def like(result: Tensor, values: object) -> Tensor | NDArray[Any]:
    """The result as a tensor where the caller gave a tensor, else as a NumPy array.

    Example:
        >>> like(torch.ones(2), [3.0, 4.0])
        array([1., 1.], dtype=float32)
    """
    return result if isinstance(values, Tensor) else result.numpy()
