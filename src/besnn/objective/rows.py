"""What each member learns from: the whole batch, or a share of it that no other member sees."""

import torch
from torch import Tensor

from besnn.errors import InputError
from besnn.layers import split_members, tile


def rows_and_labels(x: Tensor, labels: Tensor, members: int, own_inputs: bool) -> tuple[Tensor, Tensor]:
    """The members' rows of a batch, a copy, and their labels.

    Args:
        x: inputs `[batch, ...]`.
        labels: integers `[batch]`.
        members: N.
        own_inputs: deal the batch out to the members instead of showing all of it to each.

    Returns:
        Member-major rows `[N · batch, ...]` and labels `[batch]`; dealt out, `[batch, ...]` and `[N, batch / N]`.
    """
    if not own_inputs:
        return tile(x, members), labels
    if not isinstance(labels, Tensor) or labels.shape != (len(x),):  # dealt out, they would no longer look wrong
        given = f"have shape {list(labels.shape)}" if isinstance(labels, Tensor) else f"are {type(labels).__name__}"
        raise InputError(f"labels {given}: pass one class index for each of the {len(x)} inputs, as an integer tensor")
    return deal(x, members), split_members(deal(labels, members), members)


def deal(x: Tensor, members: int) -> Tensor:
    """Input i to member i mod N, member-major, so that processes that share a batch deal it as one process would.

    Args:
        x: `[batch, ...]`, the batch a multiple of N.
        members: N.

    Returns:
        `[batch, ...]`, a copy; rows `n · batch / N` to `(n + 1) · batch / N` belong to member n.

    >>> deal(torch.arange(6), 2).tolist()
    [0, 2, 4, 1, 3, 5]
    """
    if len(x) % members:
        raise InputError(f"a batch of {len(x)} inputs does not divide among {members} members: make it a multiple of {members}")
    dealt: Tensor = x.unflatten(0, (-1, members)).transpose(0, 1)
    return dealt.clone(memory_format=torch.contiguous_format).flatten(0, 1)
