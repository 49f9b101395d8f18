"""Densities of one layer's features equal the same density of these columns alone."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from besnn.detection import DENSITIES, NearestNeighbourDensity, ScoreSet
from besnn.detection.densities import LayerDensity, density_from_state, density_kind, name_at_layer

MAKERS = DENSITIES | {"nearest-neighbour": lambda: NearestNeighbourDensity(k=3, storage="int8")}
LABELS = torch.arange(60) % 3
PLACES = [(0, 4), (3, 2), (5, 4)]
"""Columns of a layer among nine features, `(first, width)`: first, in the middle, last."""


def draw(n: int, seed: int) -> Tensor:
    """Features `[2, n, 9]` of two members, each column with a scale and a mean of its own."""
    drawn = torch.randn(2, n, 9, generator=torch.Generator().manual_seed(seed))
    return drawn * torch.arange(1.0, 10) + torch.arange(9.0)


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize(("first", "width"), PLACES)
def test_a_layer_scores_as_its_columns_alone_also_from_its_state(kind: str, first: int, width: int) -> None:
    of_layer = LayerDensity(MAKERS[kind](), first, width).fit(draw(60, 0), LABELS)
    alone = MAKERS[kind]().fit(draw(60, 0)[:, :, first : first + width], LABELS)
    queries = draw(25, 1)
    expected = alone.score(queries[:, :, first : first + width])
    assert len(expected.unique()) > 20
    assert torch.equal(of_layer.score(queries), expected)
    again = density_from_state(name_at_layer(kind, "trunk.3+trunk"), of_layer.state())
    assert type(again.density) is DENSITIES[kind]
    assert torch.equal(again.score(queries), expected)


@given(kind=st.sampled_from(list(DENSITIES)), layer=st.text("abt. 0+", min_size=1, max_size=12))
def test_the_name_of_a_layers_density_contains_its_kind(kind: str, layer: str) -> None:
    assert density_kind(name_at_layer(kind, layer)) == density_kind(kind) == kind
    assert name_at_layer(kind, layer).endswith(layer)


def test_a_score_set_keeps_layers_apart_in_its_state() -> None:
    """Names of which one begins as another does, and tensors of other blocks in the same file."""
    names = {
        name_at_layer(kind, layer): place for kind in MAKERS for layer, place in zip(["t", "t.3"], PLACES[:2], strict=True)
    }
    densities = {
        name: LayerDensity(MAKERS[density_kind(name)](), *place).fit(draw(60, 0), LABELS) for name, place in names.items()
    }
    scoring = ScoreSet("logits", "nearest-neighbour at t.3", densities)
    again = ScoreSet.from_state("logits", *scoring.state())
    assert again.names == scoring.names
    evidence, features = torch.randn(2, 25, 3), draw(25, 1)
    for name in names:
        assert torch.equal(again.score(evidence, features, name), scoring.score(evidence, features, name))
    assert again.name == scoring.name
