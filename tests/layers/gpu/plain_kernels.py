"""What the Triton kernels of `besnn.layers.gpu.kernels` compute, in plain PyTorch: on CPUs, tests run this in their place."""

import torch


def available(device):
    return True


def combine(terms, shift):
    """Σ x · scale + shift."""
    first = terms[0][0]
    total = first.new_zeros(()) if shift is None else spread(shift, first)
    for x, scale in terms:
        total = total + exact(x) * spread(scale, x)
    return total.to(first.dtype)


def sums(a, x, members, mean=None, b=None):
    """Σ a, Σ a · (x − mean) and, with b, Σ a · b."""
    a, centred = exact(a), exact(x) if mean is None else exact(x) - spread(mean, x)
    products = [a, a * centred] if b is None else [a, a * centred, a * exact(b)]
    return tuple(by_member(product, members).sum(dim=(1, 3)) for product in products)


def moments(x, members):
    """The mean and the (biased) variance."""
    variance, mean = torch.var_mean(by_member(exact(x), members), dim=(1, 3), correction=0)
    return mean, variance


def exact(x):
    return x if x.dtype == torch.float64 else x.float()


def by_member(x, members):
    """A map as `[members, batch, channels, places]`."""
    return x.unflatten(0, (members, -1)).flatten(3)


def spread(values, x):
    """`[members, channels]`, repeated for each row of a map."""
    rows = values.repeat_interleave(len(x) // len(values), dim=0)
    return rows.reshape(*rows.shape, *[1] * (x.ndim - 2))
