"""The member-major layout."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from besnn.errors import InputError
from besnn.layers import BatchEnsembleLinear, mirror_views, split_members, tile

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


def test_split_is_a_view():
    x = torch.zeros(6, 2)
    split_members(x, 3)[1] = 1
    assert x.sum(1).tolist() == [0, 0, 2, 2, 0, 0]


def test_rows_that_members_do_not_divide():
    with pytest.raises(InputError, match=r"members=4 does not divide a batch of 30 rows: tile the input first .*tile\(x, 4\)"):
        split_members(torch.zeros(30, 2), 4)


@pytest.mark.parametrize("members", [0, -3, 2.0, False, None])
def test_wrong_members(members):
    with pytest.raises(InputError, match=f"members={members}: an ensemble has a whole number of members, 1 or more"):
        tile(torch.zeros(2, 2), members)


IMAGES = torch.tensor([[[[1.0, 2, 3], [4, 5, 6]]], [[[7, 8, 9], [10, 11, 12]]]])  # two, of 1 × 2 × 3
MIRRORED = torch.tensor([[[[3.0, 2, 1], [6, 5, 4]]], [[[9, 8, 7], [12, 11, 10]]]])


@pytest.mark.parametrize("views", ["i", "im", "imi", "imim", "imimi"])
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


@pytest.mark.parametrize("members", [1, 2])
@pytest.mark.parametrize("shape", [(4,), (4, 2), (4, 2, 3), (4, 1, 2, 3, 3)])
def test_only_images_have_mirror_images(shape, members):
    for use in (mirror_views, lambda x, members: tile(x, members, mirror=True)):
        with pytest.raises(InputError, match=r"no mirror images of .* shape .*: set mirror=False") as caught:
            use(torch.zeros(shape), members)
        assert f"shape {list(shape[1:])}" in str(caught.value)
        assert "\n" not in str(caught.value)


def test_mirror_images_for_nobody():
    with pytest.raises(InputError, match="members=0: an ensemble has a whole number of members"):
        mirror_views(IMAGES, 0)


def test_members_as_numpy_integer():
    assert BatchEnsembleLinear(2, 3, members=np.int64(4)).r.shape == (4, 2)
