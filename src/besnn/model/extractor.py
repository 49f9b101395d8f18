"""What every method asks of its feature extractor."""

from collections.abc import Collection
from numbers import Integral

from torch import Tensor, nn

from besnn.errors import InputError
from besnn.layers import Initialiser, batch_ensemble, members_of


def check_sizes(num_classes: int, **sizes: int) -> None:
    """Refuses fewer than two classes, and any other size below one."""
    for name, size, least in [("num_classes", num_classes, 2), *((name, size, 1) for name, size in sizes.items())]:
        if not isinstance(size, Integral) or size < least:
            raise InputError(f"{name}={size!r}: give a whole number, {least} or more")


def as_batch_ensemble(
    extractor: nn.Module,
    members: int,
    norm: str,
    init: Initialiser | None,
    share: Collection[str | type[nn.Module]] = (),
) -> nn.Module:
    """The extractor itself where it is a batch ensemble of so many members, else its conversion."""
    present = members_of(extractor)
    if present is None:
        return batch_ensemble(extractor, members, norm=norm, init=init, share=share)
    if present != members:
        raise InputError(f"the feature extractor has {present} members but members={members}: make them equal")
    return extractor


def check_plain(extractor: nn.Module) -> None:
    """Refuses a network of batch-ensemble layers: it would split a plain batch among its members in silence."""
    if (members := members_of(extractor)) is not None:
        raise InputError(f"the feature extractor is a batch ensemble of {members} members: pass a plain network")


def checked_features(features: Tensor, feature_dim: int) -> Tensor:
    """A feature extractor's output, once its shape is known to be `[rows, feature_dim]`."""
    if features.ndim != 2 or features.shape[1] != feature_dim:
        raise InputError(
            f"the feature extractor returned shape {list(features.shape)}: expected [rows, feature_dim={feature_dim}]"
        )
    return features
