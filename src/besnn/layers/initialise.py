"""How fast weights start: their spread is what makes the members differ."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from besnn.errors import InputError

Initialiser = Callable[[Tensor], Tensor]


def normal(std: float = 0.25) -> Initialiser:
    """N(1, std): members start as gentle variations of the shared weight.

    With a larger spread (0.5) the class-feature generator loses the class signal for the first epochs of training.
    """
    if not 0 <= std < math.inf:
        raise InputError(f"std={std}: a standard deviation is a finite number, 0 or more")

    def fill(weights: Tensor) -> Tensor:
        return torch.nn.init.normal_(weights, mean=1.0, std=std)

    return fill


def random_sign(probability: float = 0.5) -> Initialiser:
    """±1, with the given probability of +1 (Wen et al. 2020): members start as far apart as magnitudes of one allow."""
    if not 0 <= probability <= 1:
        raise InputError(f"probability={probability}: the chance of a +1 lies between 0 and 1")

    def fill(weights: Tensor) -> Tensor:
        with torch.no_grad():
            return weights.bernoulli_(probability).mul_(2).sub_(1)

    return fill


def first_layer_signs() -> Initialiser:
    """±1 for the first scales that it fills, and 1 for all further ones (TabM): only the first layer tells members apart.

    An initialiser for one network: it counts what it has filled.
    """
    fill, filled = random_sign(), 0

    def fill_first(weights: Tensor) -> Tensor:
        nonlocal filled
        filled += 1
        return fill(weights) if filled == 1 else torch.nn.init.ones_(weights)

    return fill_first


def ones() -> Initialiser:
    """Exactly 1: every member starts as the shared network, for instance to fine-tune a pretrained one."""
    return torch.nn.init.ones_


def initialiser(name: str) -> Initialiser:
    """The initialiser called `normal`, `sign` or `ones`, optionally with its number as in `normal:0.5`.

    >>> initialiser("sign:0.8")(torch.empty(2, 3)).abs().tolist()
    [[1.0, 1.0, 1.0], [1.0, 1.0, 1.0]]
    """
    kind, _, number = name.partition(":")
    try:
        match kind:
            case "normal":
                return normal(float(number)) if number else normal()
            case "sign":
                return random_sign(float(number)) if number else random_sign()
            case "ones" if not number:
                return ones()
            case "first" if not number:
                return first_layer_signs()
    except ValueError as error:
        raise InputError(f"fast-weight initialiser {name!r}: {error}") from None
    raise InputError(f"fast-weight initialiser {name!r} is unknown: use normal, normal:STD, sign, sign:PROBABILITY or ones")
