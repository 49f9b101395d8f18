"""The member-major layout: `members` copies of a batch folded into the batch axis, `[members · batch, ...]`."""

from numbers import Integral

import torch
from torch import Tensor

from besnn.errors import InputError


def tile(x: Tensor, members: int, dim: int = 0, *, mirror: bool = False) -> Tensor:
    """Repeats a batch once for each member, member-major.

    Args:
        x: `[batch, ...]` (the batch may stand on another axis, `dim`).
        members: how many copies.
        dim: the batch axis.
        mirror: give every second member mirror images, see `mirror_views`.

    Returns:
        `[members · batch, ...]`; rows `n · batch` to `(n + 1) · batch` belong to member n.

    >>> import torch
    >>> tile(torch.tensor([[1.0], [2.0]]), 2).flatten().tolist()
    [1.0, 2.0, 1.0, 2.0]
    """
    check_members(members)
    if mirror:
        return torch.cat(mirror_views(x, members), dim).contiguous()  # as `repeat` does
    repeats = [1] * x.ndim
    repeats[dim] = members
    return x.repeat(repeats)


def mirror_views(images: Tensor, members: int) -> list[Tensor]:
    """What each member looks at where every second one sees mirror images, left to right: `[batch, channels, h, w]` each.

    An ensemble tells more of two views of an image than of one, and needs no further pass for the second.

    >>> [view.flatten().tolist() for view in mirror_views(torch.tensor([[[[1.0, 2.0]]]]), 3)]
    [[1.0, 2.0], [2.0, 1.0], [1.0, 2.0]]
    """
    check_members(members)
    if images.ndim != 4:
        raise InputError(f"there are no mirror images of inputs of shape {list(images.shape[1:])}: set mirror=False")
    views = images, images.flip(-1)
    return [views[member % 2] for member in range(members)]


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
