"""What torch cannot tell a function written in Python: that nobody wants the gradients of its weights."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_inputs_only: ContextVar[bool] = ContextVar("inputs_only", default=False)


@contextmanager
def gradients_of_inputs_only() -> Iterator[None]:
    """Within it, convolutions and scales of this package leave out their weights' gradients."""
    token = _inputs_only.set(True)
    try:
        yield
    finally:
        _inputs_only.reset(token)


def inputs_only() -> bool:
    """Whether weights' gradients are to be left out."""
    return _inputs_only.get()
