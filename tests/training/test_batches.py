import dataclasses

import numpy as np
import pytest
import torch

from besnn.data import Dataset, load, load_or_stream
from besnn.errors import DataError, InputError
from besnn.training.batches import ArraySource, FolderSource, in_order, open_source

CPU = torch.device("cpu")


@pytest.fixture
def folder(stripe_folder):
    return load_or_stream(stripe_folder, byte_budget=0)


def test_arrays_and_folders_hand_out_the_same_batches(folder, stripe_folder):
    arrays, streamed = open_source(load(stripe_folder), CPU), open_source(folder, CPU)
    assert isinstance(arrays, ArraySource)
    assert isinstance(streamed, FolderSource)
    assert len(arrays) == len(streamed) == 64
    order = torch.randperm(64)[:50]
    pairs = list(zip(arrays.batches(order, 16), streamed.batches(order, 16), strict=True))
    assert [len(labels) for (_, labels), _ in pairs] == [16, 16, 16, 2]
    for (inputs, labels), (streamed_inputs, streamed_labels) in pairs:
        assert inputs.dtype == streamed_inputs.dtype == torch.uint8
        assert torch.equal(inputs, streamed_inputs)
        assert labels.dtype == streamed_labels.dtype == torch.int64
        assert torch.equal(labels, streamed_labels)


def test_batches_are_the_rows_that_were_asked_for(stripes):
    order = torch.tensor([5, 3, 60])
    ((inputs, labels),) = ArraySource(stripes, CPU).batches(order, 8)
    assert np.array_equal(inputs.numpy(), stripes.inputs[[5, 3, 60]])
    assert np.array_equal(labels.numpy(), stripes.labels[[5, 3, 60]])


def test_in_order(folder):
    labels = torch.cat([labels for _, labels in in_order(FolderSource(folder, CPU), 10)])
    assert np.array_equal(labels.numpy(), folder.labels)


def test_samples(folder, stripes):
    assert np.array_equal(ArraySource(stripes, CPU).sample().numpy(), stripes.inputs)
    source = FolderSource(folder, CPU)
    assert source.sample(20).shape == (20, 1, 8, 8)
    assert torch.equal(source.sample(20), source.sample(20))
    whole = folder.load().inputs
    assert sorted(source.sample().flatten(1).tolist()) == sorted(whole.reshape(64, -1).tolist())


def test_read_only_and_strided_arrays_are_taken_without_a_warning():
    inputs = np.zeros((6, 4), np.float32)
    inputs.setflags(write=False)
    labels = np.arange(12)[::2] % 2
    source = ArraySource(Dataset(inputs[:, ::2], labels, ("a", "b"), "strided"), CPU)
    assert source.labels.tolist() == labels.tolist()


def test_labels_are_needed(moons):
    with pytest.raises(InputError, match="has no labels"):
        ArraySource(Dataset(moons.inputs, None, (), "plain"), CPU)


def test_an_unreadable_image_is_named(folder, stripe_folder, tmp_path):
    broken = tmp_path / "broken.png"
    broken.write_bytes(b"no image")
    with_broken = dataclasses.replace(folder, files=(*folder.files[:3], broken), labels=folder.labels[:4])
    with pytest.raises(DataError, match=r"broken\.png"):
        list(in_order(FolderSource(with_broken, CPU), 2))
