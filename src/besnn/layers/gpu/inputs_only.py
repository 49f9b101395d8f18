"""What torch cannot tell a function written in Python: that nobody wants the gradients of its weights."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch

_inputs_only: ContextVar[bool] = ContextVar("inputs_only", default=False)


@contextmanager
def gradients_of_inputs_only() -> Iterator[None]:
    """Within it, convolutions and scales of this package leave out their weights' gradients.

    torch differentiates what ran on a GPU in threads of its own, which know nothing of the caller's: within it, it may not.
    """
    token = _inputs_only.set(True)
    try:
        with torch.autograd.set_multithreading_enabled(False):
            yield
    finally:
        _inputs_only.reset(token)


def inputs_only() -> bool:
    """Whether weights' gradients are to be left out."""
    return _inputs_only.get()
