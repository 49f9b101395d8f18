"""The layers of a feature extractor that density scores take features from."""

from collections.abc import Iterable, Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from besnn.errors import InputError
from besnn.layers.folding.fold import find_layer
from besnn.model.protocol import OODClassifier

GRID = 2
"""The side of the grid that maps are averaged over where several layers are joined."""
INPUTS = "inputs"
"""Stands for no layer at all: the standardised inputs themselves, `[1, batch, d]`, the same for all members."""
PIXELS, OUTPUT = "pixels", "output"
"""Layers that every network has: statistics of the image itself, see `pixel_statistics`, and Φ's output."""


def layer_groups(layer: str | None) -> tuple[tuple[str, ...], ...]:
    """Return the names in `"trunk.3+trunk,head"`: `+` joins layers into one group, `,` separates groups.

    >>> layer_groups("trunk.3+trunk,head"), layer_groups("trunk"), layer_groups(None)
    ((('trunk.3', 'trunk'), ('head',)), (('trunk',),), ())
    """
    groups = () if layer is None else tuple(tuple(group.split("+")) for group in layer.split(","))
    if not all(name.strip() == name != "" for group in groups for name in group):
        raise InputError(f"layer {layer!r} has an empty name or spaces: write names with + or , between them, as trunk.3+trunk")
    if len(set(groups)) < len(groups):
        raise InputError(f"layer {layer!r} names the same layers twice: leave one of them out")
    if layer != INPUTS and any(INPUTS in group for group in groups):
        raise InputError(f"layer {layer!r} joins inputs, which all members share, with a layer: name inputs alone")
    return groups


def layer_names(layer: str | None) -> tuple[str, ...]:
    """Return each layer in `"trunk.3+trunk,trunk"`, once; none stands for Φ's output, or for the inputs."""
    names = dict.fromkeys(name for group in layer_groups(layer) for name in group)
    return () if layer == INPUTS else tuple(names)


def inner_layers(layer: str | None) -> tuple[str, ...]:
    """Return those of the named layers that are modules of the network."""
    return tuple(name for name in layer_names(layer) if name not in (PIXELS, OUTPUT))


def existing_layers(model: OODClassifier, layer: str | None) -> str | None:
    """Return the layers that a recipe names, or None for a single layer that the model lacks; of several, each must exist."""
    names = inner_layers(layer)
    try:
        for extractor in model.extractors():
            for name in names:
                find_layer(extractor, name)
    except InputError:
        if len(names) > 1:
            raise
        return None  # a recipe's `trunk` is for any backbone that has one
    return layer


def layer_features(outputs: Mapping[str, Sequence[Tensor]], layer: str, members: int, dtype: torch.dtype) -> Tensor:
    """Make features `[members, batch, d]` of the outputs of one layer or several.

    The outputs are member-major rows `[members · batch, ...]` by layer and extractor. A single layer's map is averaged over its
    places, and tokens `[batch, tokens, d]` are averaged. In a group of several layers, each map is averaged over a coarse grid
    and each layer is scaled to unit length, so that none dominates: the cosine between two inputs is then the mean of the
    layers' cosines. Several groups are concatenated.
    """
    groups = [_group_features([outputs[name] for name in group], members, dtype) for group in layer_groups(layer)]
    return groups[0] if len(groups) == 1 else torch.cat(groups, dim=-1)


def _group_features(outputs: Sequence[Sequence[Tensor]], members: int, dtype: torch.dtype) -> Tensor:
    if len(outputs) == 1:
        return pooled(by_member(outputs[0], members, dtype))
    layers = [by_member(map(on_grid, rows), members, dtype) for rows in outputs]  # pooled first, so the rest handles less
    return torch.cat([F.normalize(layer, dim=-1) for layer in layers], dim=-1)


def pooled(features: Tensor) -> Tensor:
    """Average features `[members, n, ...]` to vectors `[members, n, d]`: over a map's or volume's places, or over tokens."""
    if features.ndim == 4:
        return features.mean(2)
    return features.flatten(3).mean(3) if features.ndim > 4 else features


def on_grid(rows: Tensor) -> Tensor:
    """Pool rows `[n, ...]` to vectors `[n, d]`: a map over the fields of a `GRID` × `GRID` grid, tokens over all of them."""
    if rows.ndim == 4:
        height, width = rows.shape[2:]
        return F.adaptive_avg_pool2d(rows, (min(GRID, height), min(GRID, width))).flatten(1)
    return pooled(rows[None])[0]


def by_member(rows: Iterable[Tensor], members: int, dtype: torch.dtype) -> Tensor:
    """Join the extractors' member-major rows `[members · batch, ...]` to `[members, batch, ...]`."""
    joined: Tensor = torch.cat(list(rows)).unflatten(0, (members, -1))
    return joined.to(dtype)
