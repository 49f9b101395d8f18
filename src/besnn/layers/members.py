"""The members of an ensemble: how they lie in a batch, and how their fast weights start.

A batch is repeated for each member on the batch axis, member-major: `[members · batch, ...]`.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from besnn.checks import check_sizes
from besnn.errors import InputError

Initialiser = Callable[[Tensor], Tensor]
"""Fills new fast weights in place and returns them. See `besnn.layers.initialiser`."""


def tile(x: Tensor, members: int, dim: int = 0, *, mirror: bool = False) -> Tensor:
    """Repeat a batch once per member: `[batch, ...]`, with the batch on axis `dim`, becomes `[members · batch, ...]`.

    Rows `n · batch` to `(n + 1) · batch` belong to member n. With `mirror`, every second member gets `mirror_views`.

    >>> tile(torch.tensor([[1.0], [2.0]]), 2).flatten().tolist()
    [1.0, 2.0, 1.0, 2.0]
    """
    check_sizes(members=members)
    if mirror:
        return torch.cat(mirror_views(x, members), dim).contiguous()  # as `repeat` does
    repeats = [1] * x.ndim
    repeats[dim] = members
    return x.repeat(repeats)


def mirror_views(images: Tensor, members: int) -> list[Tensor]:
    """Return each member's view of images `[batch, channels, h, w]`, where every second one is mirrored left to right.

    An ensemble learns more from two views of an image than from one, and needs no second pass for it.

    >>> [view.flatten().tolist() for view in mirror_views(torch.tensor([[[[1.0, 2.0]]]]), 3)]
    [[1.0, 2.0], [2.0, 1.0], [1.0, 2.0]]
    """
    check_sizes(members=members)
    if images.ndim != 4:
        raise InputError(f"inputs of shape {list(images.shape[1:])} are not images and have no mirror images: set mirror=False")
    views = images, images.flip(-1)
    return [views[member % 2] for member in range(members)]


def split_members(x: Tensor, members: int, dim: int = 0) -> Tensor:
    """View `[..., members · batch, ...]` as `[..., members, batch, ...]`.

    >>> list(split_members(torch.zeros(6, 5), 3).shape)
    [3, 2, 5]
    """
    rows = x.shape[dim]
    if isinstance(rows, int) and rows % members:
        fix = f"tile the input first with besnn.layers.tile(x, {members})"
        raise InputError(f"members={members} does not divide a batch of {rows} rows: {fix}")
    by_member: Tensor = x.unflatten(dim, (members, rows // members))
    return by_member


def normal(std: float = 0.25) -> Initialiser:
    """Start fast weights from N(1, std): members start as small variations of the shared weight.

    With a larger spread (0.5) the class-feature generator loses the class signal for the first epochs of training.

    >>> round(normal(std=0.25)(torch.empty(4, 100_000)).std().item(), 2)
    0.25
    """
    if not 0 <= std < math.inf:
        raise InputError(f"std={std}: pass a finite standard deviation, 0 or more")

    def fill(weights: Tensor) -> Tensor:
        return torch.nn.init.normal_(weights, mean=1.0, std=std)

    return fill


def random_sign(probability: float = 0.5) -> Initialiser:
    """Start fast weights as +1 with the given probability, else −1 (Wen et al. 2020): members start far apart.

    >>> random_sign()(torch.empty(1000)).unique().tolist()
    [-1.0, 1.0]
    """
    if not 0 <= probability <= 1:
        raise InputError(f"probability={probability}: pass the probability of +1, from 0 to 1")

    def fill(weights: Tensor) -> Tensor:
        with torch.no_grad():
            return weights.bernoulli_(probability).mul_(2).sub_(1)

    return fill


def first_layer_signs() -> Initialiser:
    """Start the first fast weights to be filled as ±1 and all later ones as 1 (TabM): members differ in the first layer only.

    The initialiser counts its calls, so use it for one network only.
    """
    fill, filled = random_sign(), 0

    def fill_first(weights: Tensor) -> Tensor:
        nonlocal filled
        filled += 1
        return fill(weights) if filled == 1 else torch.nn.init.ones_(weights)

    return fill_first


def ones() -> Initialiser:
    """Start fast weights as 1: every member starts as the shared network, for instance to fine-tune a pretrained one.

    >>> ones()(torch.empty(2, 3)).tolist()
    [[1.0, 1.0, 1.0], [1.0, 1.0, 1.0]]
    """
    return torch.nn.init.ones_


def initialiser(name: str) -> Initialiser:
    """Return the initialiser called `normal`, `sign`, `first` or `ones`, optionally with its number as in `normal:0.5`.

    >>> initialiser("sign:0.8")(torch.empty(2, 3)).abs().tolist()
    [[1.0, 1.0, 1.0], [1.0, 1.0, 1.0]]
    """
    kind, *numbers = name.split(":")
    makers: dict[str, Callable[..., Initialiser]] = {
        "normal": normal,
        "sign": random_sign,
        "ones": ones,
        "first": first_layer_signs,
    }
    try:
        return makers[kind](*map(float, numbers))
    except ValueError as error:
        raise InputError(f"fast-weight initialiser {name!r}: {error}") from None
    except (KeyError, TypeError):  # or a number for one that takes none
        known = "normal, normal:STD, sign, sign:PROBABILITY, first or ones"
        raise InputError(f"fast-weight initialiser {name!r} is unknown: use {known}") from None
