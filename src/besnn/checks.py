"""Checks of tensors at the public boundary.

Checks of *values* read the tensor back from its device, so they stand aside while a graph is compiled, exported or captured.
"""

import torch
from torch import Tensor

from besnn.errors import InputError


def _values_readable(tensor: Tensor) -> bool:
    if torch.compiler.is_compiling() or tensor.is_meta or isinstance(tensor, torch._subclasses.FakeTensor):
        return False
    return not (tensor.is_cuda and torch.cuda.is_current_stream_capturing())


def check_inputs(x: Tensor) -> None:
    """Refuses network inputs that are not a finite floating-point batch."""
    if not isinstance(x, Tensor):
        raise InputError(f"inputs are a {type(x).__name__}: convert them with torch.as_tensor(inputs, dtype=torch.float32)")
    if not x.is_floating_point():
        raise InputError(f"inputs have dtype {x.dtype}: convert them with inputs.float() (images: scaled as in training)")
    if x.ndim < 2:
        raise InputError(f"inputs have shape {list(x.shape)}: the first axis is the batch, so add one with inputs[None]")
    if _values_readable(x) and not bool(torch.isfinite(x).all()):
        raise InputError(
            f"inputs hold {int((~torch.isfinite(x)).sum())} values that are NaN or infinite: remove or replace them"
        )


def check_labels(labels: Tensor, num_classes: int, batch: int, members: int | None = None) -> None:
    """Refuses labels that are not `[batch]` integers in `0 .. num_classes − 1`; of so many members also `[members, batch]`."""
    if not isinstance(labels, Tensor) or labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        kind = labels.dtype if isinstance(labels, Tensor) else type(labels).__name__
        raise InputError(f"labels are {kind}: pass class indices as an integer tensor")
    if labels.shape not in ((batch,), (members, batch)):
        raise InputError(f"labels have shape {list(labels.shape)}: expected one label for each of the {batch} inputs")
    if batch and _values_readable(labels):
        low, high = int(labels.min()), int(labels.max())
        if low < 0 or high >= num_classes:
            wrong = low if low < 0 else high
            raise InputError(f"label {wrong} is out of range: with {num_classes} classes labels are 0 to {num_classes - 1}")


def check_distances(distances: Tensor) -> None:
    """Refuses distances that are not `[members, batch, classes]` numbers; infinite ones are allowed, NaN is not."""
    if not isinstance(distances, Tensor) or not distances.is_floating_point():
        kind = distances.dtype if isinstance(distances, Tensor) else type(distances).__name__
        raise InputError(f"distances are {kind}: pass a floating-point tensor [members, batch, classes]")
    if distances.ndim != 3:
        raise InputError(
            f"distances have shape {list(distances.shape)}: expected [members, batch, classes]; "
            "for one member use distances[None]"
        )
    if _values_readable(distances) and bool(torch.isnan(distances).any()):
        raise InputError("distances hold NaN: check that the inputs and the model's weights are finite")
