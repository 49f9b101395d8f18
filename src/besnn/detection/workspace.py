"""How much of a large computation to do at once."""

import torch

CPU_BYTES = 30 * 2**20  # about the last cache, and less than the 32 MiB from which the system maps memory anew each time
GPU_SHARE = 32  # one part in so many of its memory


def rows_at_once(device: torch.device, row_bytes: int) -> int:
    """How many rows of temporaries, each of so many bytes, to make at once; at least 1.

    Example:
        >>> rows_at_once(torch.device("cpu"), 2**20)
        30
    """
    on_gpu = device.type == "cuda"
    available = torch.cuda.get_device_properties(device).total_memory // GPU_SHARE if on_gpu else CPU_BYTES
    return max(1, available // row_bytes)
