"""Memory that every training step takes and frees again, kept by the process between steps."""

import ctypes
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager

# malloc.h, and what glibc does unless told otherwise
_TRIM_THRESHOLD, _MMAP_MAX = -1, -4
_NEVER, _DEFAULT_TRIM_THRESHOLD, _DEFAULT_MMAP_MAX = -1, 128 * 1024, 65536
_USERS_OWN = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_MAX_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES", "LD_PRELOAD")


@contextmanager
def kept_memory() -> Iterator[None]:
    """Within it, memory that is freed stays with the process, for what is allocated next.

    glibc hands large pieces back at once, and the system clears every page of them before it lends them again: on a CPU that
    takes longer than a step's arithmetic. Kept pieces fit less well, so a run may need up to twice the memory. Where users set
    such things themselves, or malloc is another's, nothing changes.
    """
    if platform.libc_ver()[0] != "glibc" or any(name in os.environ for name in _USERS_OWN):
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
