"""Features of inner layers: by hand in float64, and what scaling each to unit length promises."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from besnn.errors import InputError
from besnn.model.inner import GRID, inner_features, layer_names, on_grid


def draw(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def cosines(features):
    """`[members, n, d] → [members, n, n]`, the plain way."""
    lengths = features.square().sum(-1).sqrt()
    return torch.einsum("mid, mjd -> mij", features, features) / (lengths[:, :, None] * lengths[:, None])


@given(height=st.integers(1, 15), width=st.integers(1, 15))
def test_a_map_is_averaged_over_the_fields_of_a_grid(height, width):
    maps = draw(2, 3, height, width)
    rows, columns = min(GRID, height), min(GRID, width)
    found = on_grid(maps).view(2, 3, rows, columns)
    for i in range(rows):
        for j in range(columns):
            down = slice(i * height // rows, math.ceil((i + 1) * height / rows))
            across = slice(j * width // columns, math.ceil((j + 1) * width / columns))
            np.testing.assert_allclose(found[:, :, i, j], maps[:, :, down, across].numpy().mean((2, 3)), atol=1e-12)


@pytest.mark.parametrize("shape", [(5,), (3, 5), (3, 1, 2), (2, 3, 5, 6)])
def test_what_is_no_larger_map_is_only_flattened(shape):
    rows = draw(2, *shape)
    assert torch.equal(on_grid(rows), rows.reshape(2, -1))


def test_the_cosine_is_the_mean_of_the_layers_cosines():
    maps, vectors, tokens = 1e3 * draw(3 * 6, 2, 2, 2), 1e-3 * draw(3 * 6, 10), draw(3 * 6, 2, 3)
    joined = inner_features([[maps], [vectors], [tokens]], 3, torch.float64)
    each = [cosines(rows.view(3, 6, -1)) for rows in (maps, vectors, tokens)]
    torch.testing.assert_close(cosines(joined), sum(each) / 3)


def test_the_order_of_layers_changes_no_cosine():
    maps, vectors = draw(2 * 5, 3, 9, 7), draw(2 * 5, 4)
    one, other = (inner_features(each, 2, torch.float64) for each in ([[maps], [vectors]], [[vectors], [maps]]))
    torch.testing.assert_close(cosines(one), cosines(other))


def test_rows_of_several_extractors_are_those_of_one():
    maps, vectors = draw(3 * 4, 2, 6, 6), draw(3 * 4, 5)
    together = inner_features([[maps], [vectors]], 3, torch.float64)
    assert torch.equal(inner_features([maps.split(4), vectors.split(4)], 3, torch.float64), together)


def test_a_layer_of_zeros_stays_zero():
    vectors = draw(2 * 3, 4)
    features = inner_features([[torch.zeros(2 * 3, 5)], [vectors]], 2, torch.float64)
    assert torch.equal(features[..., :5], torch.zeros(2, 3, 5))
    torch.testing.assert_close(features.square().sum(-1), torch.ones(2, 3, dtype=torch.float64))


def test_one_layer_is_not_scaled_and_its_map_has_no_places():
    maps = draw(2 * 3, 4, 9, 9)
    np.testing.assert_allclose(inner_features([[maps]], 2, torch.float64), maps.numpy().mean((2, 3)).reshape(2, 3, 4))


def test_features_have_the_type_asked_for():
    rows = torch.randn(2 * 3, 4, 8, 8, dtype=torch.bfloat16)
    assert inner_features([[rows], [rows]], 2, torch.float32).dtype == torch.float32


@pytest.mark.parametrize("layer", ["trunk+", "+trunk", "a++b", "+", ""])
def test_every_layer_has_a_name(layer):
    with pytest.raises(InputError, match="has an empty name: write names with"):
        layer_names(layer)
