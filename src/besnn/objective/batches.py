"""How a batch is divided: among the members of an ensemble, and among processes that train together.

A batch is split among processes in order. A loss that is a mean over rows needs only the mean of the processes' gradients. What
is not such a mean (an entropy, a centroid) needs all rows.
"""

import torch
import torch.distributed as dist
from torch import Tensor, nn

from besnn.errors import InputError
from besnn.layers import split_members, tile


def rows_and_labels(x: Tensor, labels: Tensor, members: int, own_inputs: bool) -> tuple[Tensor, Tensor]:
    """Return the members' rows of a batch, a copy, and their labels: `[members · batch, ...]` and `[batch]`.

    With `own_inputs`, the batch is split among the members: `[batch, ...]` and `[members, batch / members]`.
    """
    if not own_inputs:
        return tile(x, members), labels
    if not isinstance(labels, Tensor) or labels.shape != (len(x),):  # after the split, the mistake would no longer show
        given = f"have shape {list(labels.shape)}" if isinstance(labels, Tensor) else f"are {type(labels).__name__}"
        raise InputError(f"labels {given}: pass one class index for each of the {len(x)} inputs, as an integer tensor")
    return split_inputs(x, members), split_members(split_inputs(labels, members), members)


def split_inputs(x: Tensor, members: int) -> Tensor:
    """Give input i to member i mod N, member-major, so that processes that share a batch split it as one process would.

    >>> split_inputs(torch.arange(6), 2).tolist()
    [0, 2, 4, 1, 3, 5]
    """
    if len(x) % members:
        raise InputError(f"cannot split {len(x)} inputs among {members} members: make the batch a multiple of {members}")
    by_member: Tensor = x.unflatten(0, (-1, members)).transpose(0, 1)
    return by_member.clone(memory_format=torch.contiguous_format).flatten(0, 1)


def process_count() -> int:
    """Return the number of processes that train together."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


@torch.no_grad()
def gather_rows(rows: Tensor, dim: int = 0) -> Tensor:
    """Gather the rows of all processes along `dim`, equally many each, in the order of the whole batch; no gradient passes."""
    if process_count() == 1:
        return rows.detach()
    rows = rows.contiguous()
    parts = [torch.empty_like(rows) for _ in range(process_count())]
    dist.all_gather(parts, rows)
    return torch.cat(parts, dim)


@torch.no_grad()
def sum_over_processes(value: Tensor) -> Tensor:
    """Sum a tensor over all processes."""
    total = value.detach().clone()
    if process_count() > 1:
        dist.all_reduce(total)
    return total


@torch.no_grad()
def share_buffers(module: nn.Module) -> None:
    """Give all processes the buffers of the first: BatchNorm's statistics come from each process's own rows."""
    if process_count() > 1:
        for buffer in module.buffers():
            dist.broadcast(buffer, src=0)
