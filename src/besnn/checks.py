"""Checks of arguments at the public boundary: each raises an InputError that names the value and says what to pass.

Checks of a tensor's *values* read it back from its device, so they are skipped while a graph is compiled, exported or captured.
"""

import math
import re
from collections.abc import Iterable, Sequence
from numbers import Integral, Real
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from besnn.errors import InputError

Numbers: TypeAlias = float | Sequence[float] | NDArray[Any]


def check_choice(name: str, value: str, choices: Iterable[str]) -> None:
    """Raise unless a value is one of the choices."""
    if value not in (choices := tuple(choices)):
        raise InputError(f"{name} {value!r} is unknown: choose from {', '.join(repr(choice) for choice in choices)}")


def check_sizes(num_classes: int = 1, **sizes: int) -> None:
    """Raise unless the number of classes and every other size is a whole number of one or more."""
    for name, size in {"num_classes": num_classes, **sizes}.items():
        if not isinstance(size, Integral) or size < 1:
            raise InputError(f"{name}={size!r}: give a whole number, 1 or more")


def check_weights(**weights: float) -> None:
    """Raise unless every weight is finite and not negative."""
    for name, weight in weights.items():
        if not 0 <= weight < math.inf:
            raise InputError(f"{name}={weight}: pass a finite number of 0 or more")


def is_fraction(value: object) -> bool:
    """Whether a value is a number strictly between 0 and 1; a number in quotes is none."""
    return isinstance(value, Real) and 0 < float(value) < 1


def check_fractions(**fractions: float) -> None:
    """Raise unless every fraction is a number strictly between 0 and 1."""
    for name, fraction in fractions.items():
        if not is_fraction(fraction):
            raise InputError(f"{name}={fraction!r}: pass a number between 0 and 1, both excluded")


def check_same_length(**arrays: NDArray[Any]) -> None:
    """Raise unless all arrays have the same number of rows."""
    lengths = {name: len(array) for name, array in arrays.items()}
    if len(set(lengths.values())) > 1:
        listed = ", ".join(f"{name} {length}" for name, length in lengths.items())
        raise InputError(f"lengths differ ({listed}): give one row per input in every array")


def as_numpy(values: ArrayLike, name: str) -> NDArray[Any]:
    """Return any array-like as a NumPy array; a tensor is detached and moved to the CPU first."""
    if isinstance(values, Tensor):
        tensor = values.detach().cpu()
        values = tensor.double() if tensor.is_floating_point() else tensor  # NumPy has no bfloat16
    try:
        return np.asarray(values)
    except ValueError as error:
        raise InputError(f"{name} is ragged ({error}): give rows of equal length") from None


def as_floating(values: Tensor | Numbers, name: str) -> Tensor:
    """Return the numbers as a detached floating-point tensor, in float32 or better; NaN is refused.

    Anything but a floating-point tensor becomes float64, which holds every float32 exactly: ties stay ties.
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


def as_vector(values: Tensor | Numbers, name: str) -> NDArray[np.float64]:
    """Return a list of numbers as float64 `[n]`; NaN is refused."""
    vector: NDArray[np.float64] = as_floating(values, name).cpu().double().numpy()
    if vector.ndim != 1:
        raise InputError(f"{name} have shape {list(vector.shape)}: pass a list of numbers, [n]")
    return vector


def as_integers(values: Tensor | Sequence[int] | NDArray[Any], name: str) -> Tensor:
    """Return whole numbers as an int64 tensor."""
    array = as_numpy(values, name)
    if array.size and array.dtype.kind not in "iu":
        raise InputError(f"{name} have dtype {array.dtype}: pass integers, such as predicted class indices")
    return torch.from_numpy(array.astype(np.int64))


def like(result: Tensor, values: object) -> Tensor | NDArray[Any]:
    """Return a result in the caller's kind: a tensor if `values` is a tensor, else a NumPy array."""
    return result if isinstance(values, Tensor) else result.numpy()


def check_inputs(x: Tensor) -> None:
    """Raise unless network inputs are a finite floating-point batch."""
    if not isinstance(x, Tensor):
        raise InputError(f"inputs are a {type(x).__name__}: convert them with torch.as_tensor(inputs, dtype=torch.float32)")
    if not x.is_floating_point():
        raise InputError(f"inputs have dtype {x.dtype}: convert them with inputs.float() (images: scaled as in training)")
    if x.ndim < 2:
        raise InputError(f"inputs have shape {list(x.shape)}: the first axis is the batch, so add one with inputs[None]")
    if values_readable(x) and not bool(torch.isfinite(x).all()):
        count = int((~torch.isfinite(x)).sum())
        raise InputError(f"inputs hold {count} values that are NaN or infinite: remove or replace them")


def check_labels(labels: Tensor, num_classes: int, batch: int, members: int | None = None) -> None:
    """Raise unless labels are `[batch]` (or, for members, `[members, batch]`) integers in `0 .. num_classes − 1`."""
    if not isinstance(labels, Tensor) or labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        kind = labels.dtype if isinstance(labels, Tensor) else type(labels).__name__
        raise InputError(f"labels are {kind}: pass class indices as an integer tensor")
    if labels.shape not in ((batch,), (members, batch)):
        raise InputError(f"labels have shape {list(labels.shape)}: expected one label for each of the {batch} inputs")
    if batch and values_readable(labels):
        low, high = int(labels.min()), int(labels.max())
        if low < 0 or high >= num_classes:
            wrong = low if low < 0 else high
            raise InputError(f"label {wrong} is out of range: with {num_classes} classes labels are 0 to {num_classes - 1}")


def check_distances(distances: Tensor) -> None:
    """Raise unless distances are `[members, batch, classes]` numbers; infinity is allowed, NaN is not."""
    if not isinstance(distances, Tensor) or not distances.is_floating_point():
        kind = distances.dtype if isinstance(distances, Tensor) else type(distances).__name__
        raise InputError(f"distances are {kind}: pass a floating-point tensor [members, batch, classes]")
    if distances.ndim != 3:
        expected = "expected [members, batch, classes]; for one member use distances[None]"
        raise InputError(f"distances have shape {list(distances.shape)}: {expected}")
    if values_readable(distances) and bool(torch.isnan(distances).any()):
        raise InputError("distances hold NaN: check that the inputs and the model's weights are finite")


def choose_device(name: str = "auto") -> torch.device:
    """Return the device called `auto` (the fastest available), `cpu`, `cuda` (or `gpu`), `cuda:N` or `mps`."""
    if not re.fullmatch(r"auto|cpu|gpu|cuda(:\d+)?|mps", name):
        raise InputError(f"device {name!r} is unknown: use auto, cpu, cuda, cuda:N or mps")
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    available = [f"cuda:{index}" for index in range(gpus)]
    available += ["mps", "cpu"] if torch.backends.mps.is_available() else ["cpu"]
    if name == "auto":
        return torch.device(available[0].partition(":")[0])
    device = torch.device("cuda" if name == "gpu" else name)
    if str(device) not in available and not (str(device) == "cuda" and gpus):
        raise InputError(f"device {name!r} is not available on this machine: use {' or '.join(available)}")
    return device


def values_readable(tensor: Tensor) -> bool:
    """Return whether the values of a tensor can be read: not while a graph of it is compiled, exported or captured."""
    if torch.compiler.is_compiling() or tensor.is_meta or isinstance(tensor, torch._subclasses.FakeTensor):
        return False
    return not (tensor.is_cuda and torch.cuda.is_current_stream_capturing())
