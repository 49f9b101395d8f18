"""What processes that train together tell each other; a process alone talks to nobody.

A batch is divided among the processes, in order. A loss that is a mean over rows needs no more than the mean of the processes'
gradients. What is no such mean (an entropy, a centroid) needs all rows.
"""

import torch
import torch.distributed as dist
from torch import Tensor, nn


def process_count() -> int:
    """How many processes train together.

    >>> process_count()
    1
    """
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


@torch.no_grad()
def gather_rows(rows: Tensor, dim: int = 0) -> Tensor:
    """The rows of all processes, in the order of the undivided batch; gradients do not pass.

    Args:
        rows: this process's, along `dim`; of one shape in all processes.
        dim: the dimension of rows.

    >>> gather_rows(torch.arange(3))
    tensor([0, 1, 2])
    """
    if process_count() == 1:
        return rows.detach()
    rows = rows.contiguous()
    parts = [torch.empty_like(rows) for _ in range(process_count())]
    dist.all_gather(parts, rows)
    return torch.cat(parts, dim)


@torch.no_grad()
def sum_over_processes(value: Tensor) -> Tensor:
    """The sum of a tensor over all processes, the same in each of them.

    >>> sum_over_processes(torch.tensor([1.0, 2.0]))
    tensor([1., 2.])
    """
    total = value.detach().clone()
    if process_count() > 1:
        dist.all_reduce(total)
    return total


@torch.no_grad()
def share_buffers(module: nn.Module) -> None:
    """Gives all processes the first one's buffers; BatchNorm's statistics are of each process's own rows."""
    if process_count() > 1:
        for buffer in module.buffers():
            dist.broadcast(buffer, src=0)
