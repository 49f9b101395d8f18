"""The member-major layout, and how fast weights start."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from besnn.errors import InputError
from besnn.layers import (
    batch_ensemble,
    fast_parameters,
    initialiser,
    mirror_views,
    split_members,
    tile,
)

COUNT = 20_000
SHAPES = st.lists(st.integers(1, 4), min_size=1, max_size=4)


@settings(deadline=None)
@given(shape=SHAPES, members=st.integers(1, 5), data=st.data())
def test_tile_and_split_are_member_major(shape, members, data):
    dim = data.draw(st.integers(0, len(shape) - 1))
    x = torch.randn(shape)
    tiled = tile(x, members, dim)
    assert torch.equal(tiled, torch.cat([x] * members, dim=dim))
    by_member = split_members(tiled, members, dim)
    for n in range(members):
        assert torch.equal(by_member.select(dim, n), x)


def test_rows_that_members_do_not_divide():
    with pytest.raises(InputError, match=r"members=4 does not divide a batch of 30 rows: tile the input first .*tile\(x, 4\)"):
        split_members(torch.zeros(30, 2), 4)


@pytest.mark.parametrize("members", [0, 2.0])
def test_wrong_members(members):
    with pytest.raises(InputError, match=f"members={members}: give a whole number, 1 or more"):
        tile(torch.zeros(2, 2), members)


IMAGES = torch.tensor([[[[1.0, 2, 3], [4, 5, 6]]], [[[7, 8, 9], [10, 11, 12]]]])  # two, of 1 × 2 × 3
MIRRORED = torch.tensor([[[[3.0, 2, 1], [6, 5, 4]]], [[[9, 8, 7], [12, 11, 10]]]])


@pytest.mark.parametrize("views", ["i", "im", "imi"])
def test_every_second_member_sees_mirror_images(views):
    expected = [{"i": IMAGES, "m": MIRRORED}[view] for view in views]
    found = mirror_views(IMAGES, len(views))
    assert all(torch.equal(*pair) for pair in zip(found, expected, strict=True))
    assert torch.equal(tile(IMAGES, len(views), mirror=True), torch.cat(expected))


@pytest.mark.parametrize("members", [1, 2, 3])
def test_mirrored_rows_are_copies(members):
    images = IMAGES.clone()
    tile(images, members, mirror=True).zero_()
    assert torch.equal(images, IMAGES)


@pytest.mark.parametrize("shape", [(4, 2), (4, 1, 2, 3, 3)])
def test_only_images_have_mirror_images(shape):
    for use in (mirror_views, lambda x, members: tile(x, members, mirror=True)):
        with pytest.raises(InputError, match=r"are not images and have no mirror images: set mirror=False") as caught:
            use(torch.zeros(shape), 2)
        assert f"shape {list(shape[1:])}" in str(caught.value)
        assert "\n" not in str(caught.value)


# --- how fast weights start ---


def drawn(init, dtype=torch.float32):
    return init(torch.empty(2, COUNT // 2, dtype=dtype)).double()


@pytest.mark.parametrize(
    ("name", "mean", "std"),
    [("normal", 1, 0.25), ("normal:0.5", 1, 0.5), ("sign", 0, 1), ("sign:0.75", 0.5, math.sqrt(0.75)), ("ones", 1, 0)],
)
def test_by_name(name, mean, std):
    values = drawn(initialiser(name))
    assert float(values.mean()) == pytest.approx(mean, abs=0.05)
    assert float(values.std()) == pytest.approx(std, abs=0.02)


def test_signs_in_the_first_layer_only():
    network = batch_ensemble(nn.Sequential(nn.Linear(100, 5), nn.Linear(5, 3)), 2, init=initialiser("first"))
    first, *later = fast_parameters(network)
    assert first is network[0].r
    assert {-1.0, 1.0} == set(first.flatten().tolist())
    assert all(bool((weights == 1).all()) for weights in later)


@pytest.mark.parametrize("name", ["uniform", "ones:2"])
def test_unknown_name(name):
    with pytest.raises(InputError, match=f"fast-weight initialiser '{name}' is unknown: use normal, normal:STD, sign"):
        initialiser(name)


@pytest.mark.parametrize("name", ["normal:wide", "normal:-1", "normal:nan", "sign:2"])
def test_wrong_number(name):
    with pytest.raises(InputError, match=f"fast-weight initialiser '{name}': "):
        initialiser(name)
