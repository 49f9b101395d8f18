"""The member-major layout: `members` copies of a batch folded into the batch axis, `[members · batch, ...]`."""

from numbers import Integral

from torch import Tensor

from besnn.errors import InputError


def tile(x: Tensor, members: int, dim: int = 0) -> Tensor:
    """Repeats a batch once for each member, member-major.

    Args:
        x: `[batch, ...]` (the batch may stand on another axis, `dim`).
        members: how many copies.
        dim: the batch axis.

    Returns:
        `[members · batch, ...]`; rows `n · batch` to `(n + 1) · batch` belong to member n.

    >>> import torch
    >>> tile(torch.tensor([[1.0], [2.0]]), 2).flatten().tolist()
    [1.0, 2.0, 1.0, 2.0]
    """
    check_members(members)
    repeats = [1] * x.ndim
    repeats[dim] = members
    return x.repeat(repeats)


def split_members(x: Tensor, members: int, dim: int = 0) -> Tensor:
    """Views `[..., members · batch, ...]` as `[..., members, batch, ...]`.

    >>> import torch
    >>> list(split_members(torch.zeros(6, 5), 3).shape)
    [3, 2, 5]
    """
    rows = x.shape[dim]
    if isinstance(rows, int) and rows % members:
        raise InputError(
            f"members={members} does not divide a batch of {rows} rows: "
            f"tile the input first with besnn.layers.tile(x, {members})"
        )
    by_member: Tensor = x.unflatten(dim, (members, rows // members))
    return by_member


def check_members(members: int) -> None:
    """Refuses a number of members that is not a positive integer."""
    if not isinstance(members, Integral) or isinstance(members, bool) or members < 1:
        raise InputError(f"members={members!r}: an ensemble has a whole number of members, 1 or more")
