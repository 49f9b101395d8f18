"""Where training runs: devices and precision by Lightning Fabric, CUDA graphs, the layout of weights, memory between steps."""

import ctypes
import gc
import os
import platform
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from lightning.fabric import Fabric
from lightning.fabric.utilities.exceptions import MisconfigurationException
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from besnn.checks import check_choice, choose_device
from besnn.errors import InputError, one_line

Terms = dict[str, Tensor]
Step = Callable[[Tensor, Tensor, Mapping[str, float]], Terms]
Key = tuple[tuple[str, float], ...]
Recording = tuple[torch.cuda.CUDAGraph, Tensor, Tensor, Terms]

_PRECISIONS: Mapping[str, Any] = {"fp32": "32-true", "tf32": "32-true", "bf16": "bf16-mixed"}


def make_fabric(precision: str = "fp32", accelerator: str = "auto", devices: int = 1, strategy: str = "auto") -> Fabric:
    """Make Fabric for a recipe's precision: `fp32`, `tf32` or `bf16`.

    `accelerator` is a name that `besnn.checks.choose_device` knows. `devices` is the number of devices, or of processes on the
    CPU, and `strategy` Lightning's name for how they share the work.

    >>> make_fabric("bf16", accelerator="cpu").device
    device(type='cpu')
    """
    check_choice("precision", precision, _PRECISIONS)
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
        asked = f"device {accelerator!r} with devices={devices} and strategy={strategy!r}"
        reason = f"is not available on this machine ({one_line(error)})"
        raise InputError(f"{asked} {reason}: leave devices and strategy out") from None
    fabric.launch()
    return fabric


def set_memory_format(model: nn.Module, memory_format: torch.memory_format) -> None:
    """Put the weights of 2D convolutions into a memory format; their outputs then follow it."""
    for layer in model.modules():
        if isinstance(layer, _ConvNd) and layer.weight.ndim == 4:
            layer.weight.data = layer.weight.data.contiguous(memory_format=memory_format)


class GraphedStep:
    """A training step that is recorded as a CUDA graph, once per combination of factors, and then replayed.

    A replay is one launch instead of hundreds. The first calls run eagerly: they are real training steps, in which libraries
    choose their algorithms. Random numbers in a replay follow the seed that was set before it, as they do without a graph.
    The step fills the gradients of some parameters from a batch, always of one shape, and returns the loss terms.
    """

    def __init__(self, step: Step, warm_up: int = 3) -> None:
        self.step, self.warm_up = step, warm_up
        self.seen: dict[Key, int] = {}
        self.recorded: dict[Key, Recording] = {}
        self.stream = torch.cuda.Stream()

    def __call__(self, x: Tensor, labels: Tensor, factors: Mapping[str, float]) -> Terms:
        """Return the loss terms; the gradients are left where the step leaves them."""
        key = tuple(sorted(factors.items()))
        if key not in self.recorded:
            self.seen[key] = self.seen.get(key, 0) + 1
            if self.seen[key] <= self.warm_up:
                return self._run_eagerly(x, labels, factors)
            self.recorded[key] = self._record(x, labels, factors)
        graph, static_x, static_labels, terms = self.recorded[key]
        static_x.copy_(x)
        static_labels.copy_(labels)
        graph.replay()
        return terms

    def _run_eagerly(self, x: Tensor, labels: Tensor, factors: Mapping[str, float]) -> Terms:
        """Run the step on the stream that recording uses, so that its gradients are allocated there."""
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            terms = self.step(x, labels, factors)
        torch.cuda.current_stream().wait_stream(self.stream)
        return terms

    def _record(self, x: Tensor, labels: Tensor, factors: Mapping[str, float]) -> Recording:
        graph = torch.cuda.CUDAGraph()
        static_x, static_labels = x.clone(), labels.clone()
        gc.collect()  # an earlier run's graph that is freed during the recording would spoil it
        with torch.cuda.graph(graph, stream=self.stream):
            terms = self.step(static_x, static_labels, factors)
        return graph, static_x, static_labels, {name: term.detach() for name, term in terms.items()}


# malloc.h's names of the settings, and glibc's defaults
_TRIM_THRESHOLD, _MMAP_MAX = -1, -4
_NEVER, _DEFAULT_TRIM_THRESHOLD, _DEFAULT_MMAP_MAX = -1, 128 * 1024, 65536
_SET_BY_USERS = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_MAX_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES", "LD_PRELOAD")


@contextmanager
def keep_freed_memory() -> Iterator[None]:
    """Keep freed memory in the process for the next allocation while the context lasts.

    By default, glibc returns large blocks to the system at once, and the system clears every page before it hands them out
    again: on a CPU, that takes longer than the arithmetic of a step. Kept blocks fit less well, so a run may need up to twice
    the memory. Nothing changes where users set malloc's options themselves, or where malloc is not glibc's.
    """
    if platform.libc_ver()[0] != "glibc" or any(name in os.environ for name in _SET_BY_USERS):
        yield
        return
    libc = ctypes.CDLL(None)
    libc.mallopt(_MMAP_MAX, 0)
    libc.mallopt(_TRIM_THRESHOLD, _NEVER)
    try:
        yield
    finally:
        libc.mallopt(_MMAP_MAX, _DEFAULT_MMAP_MAX)
        libc.mallopt(_TRIM_THRESHOLD, _DEFAULT_TRIM_THRESHOLD)
        libc.malloc_trim(0)
