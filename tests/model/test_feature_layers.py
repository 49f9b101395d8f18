"""Features of layers: by hand in float64, and the cosines that scaling to unit length gives."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from besnn.errors import InputError
from besnn.model.feature_layers import GRID, layer_features, layer_groups, layer_names, on_grid


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


@pytest.mark.parametrize(("shape", "places"), [((5,), ()), ((3, 5), 1), ((4, 3, 5, 6), (2, 3, 4))])
def test_vectors_stay_and_tokens_and_volumes_are_averaged(shape, places):
    rows = draw(2, *shape)
    expected = rows.numpy().mean(places) if places else rows.numpy()
    np.testing.assert_allclose(on_grid(rows), expected, atol=1e-12)
    np.testing.assert_allclose(layer_features({"a": [rows]}, "a", 2, torch.float64)[:, 0], expected, atol=1e-12)


def test_the_cosine_is_the_mean_of_the_layers_cosines():
    maps, vectors, tokens = 1e3 * draw(3 * 6, 2, 2, 2), 1e-3 * draw(3 * 6, 10), draw(3 * 6, 2, 3)
    joined = layer_features({"a": [maps], "b": [vectors], "c": [tokens]}, "a+b+c", 3, torch.float64)
    each = [cosines(rows.view(3, 6, -1)) for rows in (maps, vectors, tokens.mean(1))]
    torch.testing.assert_close(cosines(joined), sum(each) / 3)


def test_rows_of_several_extractors_are_those_of_one():
    maps, vectors = draw(3 * 4, 2, 6, 6), draw(3 * 4, 5)
    together = layer_features({"a": [maps], "b": [vectors]}, "a+b", 3, torch.float64)
    assert torch.equal(layer_features({"a": maps.split(4), "b": vectors.split(4)}, "a+b", 3, torch.float64), together)


def test_a_layer_of_zeros_stays_zero():
    vectors = draw(2 * 3, 4)
    features = layer_features({"a": [torch.zeros(2 * 3, 5)], "b": [vectors]}, "a+b", 2, torch.float64)
    assert torch.equal(features[..., :5], torch.zeros(2, 3, 5))
    torch.testing.assert_close(features.square().sum(-1), torch.ones(2, 3, dtype=torch.float64))


def test_one_layer_is_not_scaled_and_its_map_has_no_places():
    maps = draw(2 * 3, 4, 9, 9)
    np.testing.assert_allclose(layer_features({"a": [maps]}, "a", 2, torch.float64), maps.numpy().mean((2, 3)).reshape(2, 3, 4))


def test_layers_apart_stand_side_by_side_each_as_it_would_alone():
    maps, vectors = draw(2 * 3, 4, 9, 6), 1e3 * draw(2 * 3, 5)
    found = layer_features({"a": maps.split(3), "b": vectors.split(3)}, "b,a+b,a", 2, torch.float64)
    means = maps.numpy().mean((2, 3)).reshape(2, 3, 4)
    fields = [maps.numpy()[:, :, i : i + 5, j : j + 3].mean((2, 3)) for i in (0, 4) for j in (0, 3)]  # 9 rows overlap in one
    grid = np.stack(fields, axis=-1).reshape(2, 3, 16)
    plain = vectors.numpy().reshape(2, 3, 5)
    unit = [each / np.sqrt((each**2).sum(-1, keepdims=True)) for each in (grid, plain)]
    np.testing.assert_allclose(found, np.concatenate([plain, *unit, means], axis=-1), rtol=1e-12, atol=1e-12)


@given(
    st.lists(
        st.lists(st.text("ab.0_", min_size=1, max_size=4), min_size=1, max_size=3).map(tuple),
        min_size=1,
        max_size=4,
        unique=True,
    ).map(tuple)
)
def test_groups_are_read_as_written(groups):
    layer = ",".join("+".join(group) for group in groups)
    assert layer_groups(layer) == groups
    names = layer_names(layer)
    assert sorted(names) == sorted({name for group in groups for name in group})  # each once


def test_a_layer_in_two_groups_is_named_once_in_order():
    assert layer_groups("c+a,b,a,a+c") == (("c", "a"), ("b",), ("a",), ("a", "c"))
    assert layer_names("c+a,b,a,a+c") == ("c", "a", "b")


@pytest.mark.parametrize("layer", ["a,a", "a+b,c,a+b"])
def test_the_same_group_twice(layer):
    with pytest.raises(InputError) as refused:
        layer_names(layer)
    assert str(refused.value) == f"layer {layer!r} names the same layers twice: leave one of them out"


@pytest.mark.parametrize("layer", ["trunk+", "+trunk", "a++b", "", "a,", "a,,b", "a+,b", "a, b", " a", "a\n"])
def test_every_layer_has_a_name(layer):
    with pytest.raises(InputError, match=r"write names with \+ or , between them") as refused:
        layer_names(layer)
    assert repr(layer) in str(refused.value)
    assert "\n" not in str(refused.value)
