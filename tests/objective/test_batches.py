"""Splitting a batch among members, index by index; and among two processes, over gloo, against one process."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from besnn.errors import InputError
from besnn.objective.batches import (
    gather_rows,
    process_count,
    rows_and_labels,
    share_buffers,
    split_inputs,
    sum_over_processes,
)


@given(members=st.integers(1, 5), each=st.integers(0, 4), shape=st.sampled_from([(), (2,), (1, 3, 2)]))
def test_input_i_goes_to_member_i_mod_n(members, each, shape):
    x = torch.randn(members * each, *shape)
    split = split_inputs(x, members)
    assert split.shape == x.shape
    for i in range(len(x)):
        member, place = i % members, i // members
        assert torch.equal(split[member * each + place], x[i])


@pytest.mark.parametrize("members", [1, 3])
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_split_rows_are_a_copy(members, memory_format):
    x = torch.randn(6, 2, 3, 3).to(memory_format=memory_format)
    kept = x.clone()
    split = split_inputs(x, members)
    split.requires_grad_()
    with torch.no_grad():
        split.zero_()
    assert torch.equal(x, kept)
    assert not x.requires_grad
    assert split.is_leaf


@given(members=st.integers(1, 4), processes=st.integers(1, 3), each=st.integers(1, 3))
def test_processes_that_share_a_batch_split_it_as_one_would(members, processes, each):
    batch = torch.randperm(members * processes * each)
    whole = split_inputs(batch, members).view(members, -1)
    shares = [split_inputs(share, members).view(members, -1) for share in batch.chunk(processes)]
    assert torch.equal(torch.cat(shares, dim=1), whole)


@pytest.mark.parametrize("batch", [1, 5, 7])
def test_a_batch_that_cannot_be_split(batch):
    message = f"cannot split {batch} inputs among 3 members: make the batch a multiple of 3"
    with pytest.raises(InputError, match=message) as raised:
        split_inputs(torch.zeros(batch, 2), 3)
    assert "\n" not in str(raised.value)


def test_labels_stay_with_their_inputs():
    labels = torch.randint(0, 9, (12,))
    x = labels[:, None] + torch.tensor([0.25, 0.5])
    rows, split = rows_and_labels(x, labels, members=3, own_inputs=True)
    assert split.shape == (3, 4)
    assert torch.equal(rows, split.flatten()[:, None] + torch.tensor([0.25, 0.5]))


def test_without_a_split_every_member_has_the_whole_batch():
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
def test_labels_that_are_not_one_per_input(labels, says):
    with pytest.raises(InputError, match=rf"labels {says}: pass one class index for each of the 12 inputs") as raised:
        rows_and_labels(torch.zeros(12, 2), labels, members=3, own_inputs=True)
    assert "\n" not in str(raised.value)


# --- processes ---


def test_a_single_process_keeps_its_rows():
    rows = torch.ones(3, 2, requires_grad=True)
    assert process_count() == 1
    assert gather_rows(rows, dim=1).equal(rows)
    assert not gather_rows(rows).requires_grad
    total = sum_over_processes(rows)
    total += 1  # a copy
    assert rows.equal(torch.ones(3, 2))
    norm = nn.BatchNorm1d(2)
    before = {name: value.clone() for name, value in norm.state_dict().items()}
    share_buffers(norm)
    assert all(value.equal(before[name]) for name, value in norm.state_dict().items())
