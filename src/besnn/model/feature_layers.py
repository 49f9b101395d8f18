"""What inner layers of a feature extractor give, as features for density scores."""

from collections.abc import Iterable, Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from besnn.errors import InputError
from besnn.layers import find_layer
from besnn.model.protocol import OODClassifier

GRID = 2
"""Several layers together are looked at with their maps pooled to this many places a side, at most."""


def layer_blocks(layer: str | None) -> tuple[tuple[str, ...], ...]:
    """The names in `"trunk.3+trunk,head"`: layers with a plus between them are looked at together, with a comma apart.

    >>> layer_blocks("trunk.3+trunk,head"), layer_blocks("trunk"), layer_blocks(None)
    ((('trunk.3', 'trunk'), ('head',)), (('trunk',),), ())
    """
    blocks = () if layer is None else tuple(tuple(block.split("+")) for block in layer.split(","))
    if not all(name.strip() == name != "" for block in blocks for name in block):
        raise InputError(
            f"layer {layer!r} has an empty name or spaces: write names with + or , between them, for instance trunk.3+trunk"
        )
    if len(set(blocks)) < len(blocks):
        raise InputError(f"layer {layer!r} names the same layers twice: leave one of them out")
    return blocks


def layer_names(layer: str | None) -> tuple[str, ...]:
    """Each layer in `"trunk.3+trunk,trunk"`, once; none stands for Φ's output.

    >>> layer_names("trunk.3+trunk,trunk"), layer_names(None)
    (('trunk.3', 'trunk'), ())
    """
    return tuple(dict.fromkeys(name for block in layer_blocks(layer) for name in block))


def existing_layers(model: OODClassifier, layer: str | None) -> str | None:
    """The layers that a recipe names, as a model has them: a single one that it lacks is None; of several, each must exist."""
    names = layer_names(layer)
    try:
        for extractor in model.extractors():
            for name in names:
                find_layer(extractor, name)
    except InputError:
        if len(names) > 1:
            raise
        return None  # a recipe's `trunk` is for whichever backbone has one
    return layer


def inner_features(outputs: Mapping[str, Sequence[Tensor]], layer: str, members: int, dtype: torch.dtype) -> Tensor:
    """Features `[members, batch, d]` made of the outputs of one layer or several.

    One layer's are `as_vectors`. Of several together, each is scaled to unit length before they are joined, so that none drowns
    another: the cosine between two inputs is then the mean of the layers' cosines. Their maps keep a coarse grid of places.
    What is looked at apart stands side by side.

    Args:
        outputs: by layer, and in it by extractor: member-major rows `[members · batch, ...]`.
        layer: which of them, as in `layer_blocks`.
        members: N, of all extractors together.
        dtype: of the features.

    >>> outputs = {"maps": [torch.rand(4 * 2, 8, 14, 14)], "vectors": [torch.rand(4 * 2, 32)]}
    >>> list(inner_features(outputs, "maps", 4, torch.float32).shape)
    [4, 2, 8]
    >>> list(inner_features(outputs, "maps+vectors", 4, torch.float32).shape)  # 8 · 2 · 2 + 32
    [4, 2, 64]
    >>> list(inner_features(outputs, "maps,vectors", 4, torch.float32).shape)  # 8 + 32
    [4, 2, 40]
    """
    blocks = [_block([outputs[name] for name in block], members, dtype) for block in layer_blocks(layer)]
    return blocks[0] if len(blocks) == 1 else torch.cat(blocks, dim=-1)


def _block(outputs: Sequence[Sequence[Tensor]], members: int, dtype: torch.dtype) -> Tensor:
    if len(outputs) == 1:
        return as_vectors(by_member(outputs[0], members, dtype))
    layers = [by_member(map(on_grid, rows), members, dtype) for rows in outputs]  # pooled first: the rest handles less
    return torch.cat([F.normalize(layer, dim=-1) for layer in layers], dim=-1)


def as_vectors(inner: Tensor) -> Tensor:
    """An inner layer's output `[members, batch, ...]` as features `[members, batch, d]`; a map is averaged over its places.

    >>> list(as_vectors(torch.rand(4, 2, 256, 8, 8)).shape), list(as_vectors(torch.rand(4, 2, 3, 5)).shape)
    ([4, 2, 256], [4, 2, 15])
    """
    return inner.mean((-2, -1)) if inner.ndim == 5 else inner.flatten(2)


def on_grid(rows: Tensor) -> Tensor:
    """Rows `[n, ...]` as vectors `[n, d]`; a larger map is averaged over the fields of a `GRID` × `GRID` grid.

    >>> [list(on_grid(torch.rand(2, *shape)).shape) for shape in ((8, 14, 14), (8, 2, 14), (8, 1, 2), (8,))]
    [[2, 32], [2, 32], [2, 16], [2, 8]]
    """
    if rows.ndim == 4:
        height, width = rows.shape[2:]
        rows = F.adaptive_avg_pool2d(rows, (min(GRID, height), min(GRID, width)))
    return rows.flatten(1)


def by_member(rows: Iterable[Tensor], members: int, dtype: torch.dtype) -> Tensor:
    """The extractors' member-major rows `[members · batch, ...]`, put together: `[members, batch, ...]`."""
    together: Tensor = torch.cat(list(rows)).unflatten(0, (members, -1))
    return together.to(dtype)
