"""Devices, precision and processes, by Lightning Fabric."""

from collections.abc import Mapping
from typing import Any

import torch
from lightning.fabric import Fabric
from lightning.fabric.utilities.exceptions import MisconfigurationException

from besnn.errors import InputError, one_line

_PRECISIONS: Mapping[str, Any] = {"fp32": "32-true", "tf32": "32-true", "bf16": "bf16-mixed"}


def make_fabric(precision: str = "fp32", accelerator: str = "auto", devices: int | str = 1, strategy: str = "auto") -> Fabric:
    """Fabric for a recipe's precision; `accelerator` is `auto`, `cpu`, `gpu` or `mps`.

    >>> make_fabric("bf16", accelerator="cpu").device
    device(type='cpu')
    """
    if precision not in _PRECISIONS:
        raise InputError(f"precision {precision!r} is unknown: use one of {', '.join(_PRECISIONS)}")
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    torch.backends.cudnn.allow_tf32 = precision == "tf32"
    try:
        fabric = Fabric(accelerator=accelerator, devices=devices, strategy=strategy, precision=_PRECISIONS[precision])
    except (MisconfigurationException, ValueError, RuntimeError) as error:
        raise InputError(
            f"accelerator={accelerator!r}, devices={devices!r}, strategy={strategy!r} cannot be had here ({one_line(error)}): "
            "leave them out to train on what there is"
        ) from None
    fabric.launch()
    return fabric
