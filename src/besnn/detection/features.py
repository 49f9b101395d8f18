"""Checks of features `[members, n, d]`, shared by the densities."""

import torch
from torch import Tensor

from besnn.errors import InputError


def check_features(features: Tensor) -> None:
    """Refuses features that are not finite floating-point numbers `[members, n, d]`."""
    if not isinstance(features, Tensor) or not features.is_floating_point():
        kind = features.dtype if isinstance(features, Tensor) else type(features).__name__
        raise InputError(f"features are {kind}: pass a floating-point tensor [members, n, d]")
    if features.ndim != 3:
        raise InputError(
            f"features have shape {list(features.shape)}: expected [members, n, d]; flatten convolutional ones first"
        )
    if not bool(torch.isfinite(features).all()):
        raise InputError("features hold NaN or infinite values: check that the inputs and the model's weights are finite")


def check_same_layer(features: Tensor, members: int, dimension: int) -> None:
    """Refuses features of another model or layer than the density was fitted on."""
    check_features(features)
    if features.shape[0] != members or features.shape[2] != dimension:
        raise InputError(
            f"features have shape {list(features.shape)}, the density was fitted on [{members}, n, {dimension}]: "
            "use the same model and layer"
        )
