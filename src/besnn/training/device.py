"""Devices, precision and processes, by Lightning Fabric."""

from collections.abc import Mapping
from typing import Any

import torch
from lightning.fabric import Fabric
from lightning.fabric.utilities.exceptions import MisconfigurationException

from besnn.checks import choose_device
from besnn.errors import InputError, one_line

_PRECISIONS: Mapping[str, Any] = {"fp32": "32-true", "tf32": "32-true", "bf16": "bf16-mixed"}


def make_fabric(precision: str = "fp32", accelerator: str = "auto", devices: int = 1, strategy: str = "auto") -> Fabric:
    """Make Fabric for a recipe's precision.

    Args:
        precision: `fp32`, `tf32` or `bf16`.
        accelerator: a device by a name that `besnn.checks.choose_device` knows; with an index, that one alone is used.
        devices: the number of devices, or of processes on the CPU.
        strategy: how several devices share the work, by Lightning's names.

    >>> make_fabric("bf16", accelerator="cpu").device
    device(type='cpu')
    """
    if precision not in _PRECISIONS:
        raise InputError(f"precision {precision!r} is unknown: use one of {', '.join(_PRECISIONS)}")
    device = choose_device(accelerator)
    if device.index is not None and devices != 1:
        raise InputError(f"device {accelerator!r} is a single device: use {device.type!r} for devices={devices}")
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    torch.backends.cudnn.allow_tf32 = precision == "tf32"
    try:
        fabric = Fabric(
            accelerator=device.type,
            devices=devices if device.index is None else [device.index],
            strategy=strategy,
            precision=_PRECISIONS[precision],
        )
    except (MisconfigurationException, ValueError, RuntimeError) as error:
        raise InputError(
            f"device {accelerator!r} with devices={devices} and strategy={strategy!r} is not available on this machine "
            f"({one_line(error)}): leave devices and strategy out"
        ) from None
    fabric.launch()
    return fabric
