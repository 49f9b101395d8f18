"""The member-major layout."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from besnn.errors import InputError
from besnn.layers import BatchEnsembleLinear, split_members, tile

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


def test_members_as_numpy_integer():
    assert BatchEnsembleLinear(2, 3, members=np.int64(4)).r.shape == (4, 2)
