"""Selecting the out-of-distribution inputs of a batch with a bound on the share of false ones among them."""

from typing import overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from besnn.detection.arrays import Numbers, as_floating, like
from besnn.errors import InputError


@overload
def benjamini_hochberg(p_values: Tensor, q: float) -> Tensor: ...
@overload
def benjamini_hochberg(p_values: Numbers, q: float) -> NDArray[np.bool_]: ...
def benjamini_hochberg(p_values: Tensor | Numbers, q: float) -> Tensor | NDArray[np.bool_]:
    """Selects p ≤ p₍ₖ₎ with k the largest rank such that p₍ₖ₎ ≤ k q / batch (Benjamini & Hochberg 1995).

    The expected share of false selections is ≤ q, also for conformal p-values that share one calibration set: they
    depend on each other positively, as the procedure allows (Bates et al. 2023).

    Args:
        p_values: `[batch]`.
        q: the false-discovery rate.

    Returns:
        The mask `[batch]` of the selected inputs: a tensor for a tensor, else an array.

    Example:
        >>> benjamini_hochberg([0.01, 0.04, 0.03, 0.9], q=0.1)
        array([ True,  True,  True, False])
    """
    if not 0 < q < 1:
        raise InputError(f"q={q} is not a false-discovery rate: choose it between 0 and 1, such as 0.1")
    p = as_floating(p_values, "p-values")
    if p.ndim != 1:
        raise InputError(f"p-values have shape {list(p.shape)}: pass one for each input, [batch]")
    if bool(((p < 0) | (p > 1)).any()):
        raise InputError(f"p-value {p[(p < 0) | (p > 1)][0]:g} is out of range: p-values lie between 0 and 1")
    p_sorted = p.sort().values
    ranks = torch.arange(1, len(p) + 1, device=p.device, dtype=p.dtype)
    passing = p_sorted[p_sorted * len(p) <= ranks * q]
    return like(p <= passing.max() if len(passing) else torch.zeros_like(p, dtype=torch.bool), p_values)
