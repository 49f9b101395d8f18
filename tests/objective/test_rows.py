"""What each member learns from, against an index at a time."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from besnn.errors import InputError
from besnn.objective.rows import deal, rows_and_labels


@given(members=st.integers(1, 5), each=st.integers(0, 4), shape=st.sampled_from([(), (2,), (1, 3, 2)]))
def test_inputs_go_round_the_members(members, each, shape):
    x = torch.randn(members * each, *shape)
    dealt = deal(x, members)
    assert dealt.shape == x.shape
    for i in range(len(x)):
        member, place = i % members, i // members
        assert torch.equal(dealt[member * each + place], x[i])


@pytest.mark.parametrize("members", [1, 3])
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_dealt_rows_are_a_copy(members, memory_format):
    x = torch.randn(6, 2, 3, 3).to(memory_format=memory_format)
    kept = x.clone()
    dealt = deal(x, members)
    dealt.requires_grad_()
    with torch.no_grad():
        dealt.zero_()
    assert torch.equal(x, kept)
    assert not x.requires_grad
    assert dealt.is_leaf


@given(members=st.integers(1, 4), processes=st.integers(1, 3), each=st.integers(1, 3))
def test_processes_that_share_a_batch_deal_it_as_one_would(members, processes, each):
    batch = torch.randperm(members * processes * each)
    whole = deal(batch, members).view(members, -1)
    shares = [deal(share, members).view(members, -1) for share in batch.chunk(processes)]
    assert torch.equal(torch.cat(shares, dim=1), whole)


@pytest.mark.parametrize("batch", [1, 5, 7])
def test_a_batch_that_does_not_go_round(batch):
    message = rf"a batch of {batch} inputs does not divide among 3 members: make it a multiple of 3"
    with pytest.raises(InputError, match=message) as raised:
        deal(torch.zeros(batch, 2), 3)
    assert "\n" not in str(raised.value)


def test_labels_stay_with_their_inputs():
    labels = torch.randint(0, 9, (12,))
    x = labels[:, None] + torch.tensor([0.25, 0.5])
    rows, dealt = rows_and_labels(x, labels, members=3, own_inputs=True)
    assert dealt.shape == (3, 4)
    assert torch.equal(rows, dealt.flatten()[:, None] + torch.tensor([0.25, 0.5]))


def test_undealt_every_member_has_the_whole_batch():
    x, labels = torch.randn(4, 2), torch.arange(4)
    rows, same = rows_and_labels(x, labels, members=3, own_inputs=False)
    assert same is labels
    assert torch.equal(rows, torch.cat([x, x, x]))


@pytest.mark.parametrize(
    ("labels", "says"),
    [
        ([0] * 12, "are list"),
        (torch.tensor(0), r"have shape \[\]"),
        (torch.zeros(11, dtype=torch.int64), r"have shape \[11\]"),
        (torch.zeros(9, dtype=torch.int64), r"have shape \[9\]"),
        (torch.zeros(3, 4, dtype=torch.int64), r"have shape \[3, 4\]"),
        (torch.zeros(12, 1, dtype=torch.int64), r"have shape \[12, 1\]"),
    ],
)
def test_labels_that_are_not_one_an_input(labels, says):
    with pytest.raises(InputError, match=rf"labels {says}: pass one class index for each of the 12 inputs") as raised:
        rows_and_labels(torch.zeros(12, 2), labels, members=3, own_inputs=True)
    assert "\n" not in str(raised.value)
