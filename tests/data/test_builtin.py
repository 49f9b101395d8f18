import struct

import numpy as np
import pytest
from sklearn.datasets import load_digits, make_moons

from besnn.data import digits, load, two_moons
from besnn.data.builtin import load_builtin
from besnn.errors import DataError, InputError


def idx(values):
    return struct.pack(f">BBBB{values.ndim}I", 0, 0, 8, values.ndim, *values.shape) + values.tobytes()


def small_mnist(root, labels):
    """A few made-up images under MNIST's names: sound files with fewer records than the official ones."""
    raw = root / "MNIST" / "raw"
    raw.mkdir(parents=True)
    pixels = np.random.default_rng(0).integers(0, 256, (30, 28, 28), dtype=np.uint8)
    (raw / "t10k-images-idx3-ubyte").write_bytes(idx(pixels))
    (raw / "t10k-labels-idx1-ubyte").write_bytes(idx(labels.astype(np.uint8)))
    return pixels


def test_a_partial_set_is_used_and_says_so(tmp_path):
    pixels = small_mnist(tmp_path, np.arange(30) % 10)
    loaded = load_builtin("mnist:test", data_dir=tmp_path)
    assert np.array_equal(loaded.inputs[:, 0], pixels)
    assert loaded.labels.tolist() == [row % 10 for row in range(30)]
    assert "30 of 10,000 records" in loaded.note
    assert set(loaded.hashes) == {"MNIST/raw/t10k-images-idx3-ubyte", "MNIST/raw/t10k-labels-idx1-ubyte"}


@pytest.mark.parametrize(
    ("labels", "error", "words"),
    [
        (np.zeros(29), DataError, "30 images but 29 labels"),
        (np.zeros(10_000), DataError, "t10k-labels-idx1-ubyte has SHA-256"),
        (np.full(30, 10), InputError, "10 class names"),
    ],
    ids=["too few", "altered", "outside the classes"],
)
def test_wrong_labels_are_refused(tmp_path, labels, error, words, one_line):
    small_mnist(tmp_path, labels)
    with pytest.raises(error) as caught:
        load_builtin("mnist:test", data_dir=tmp_path)
    one_line(caught, words)


def test_splits_of_generated_sets_do_not_overlap():
    train, test = load_builtin("digits:train"), load_builtin("digits:test")
    assert (len(train), len(test)) == (1438, 359)
    moons, others = load_builtin("two-moons"), load_builtin("two-moons", split="test")
    assert (moons.name, others.name) == ("two-moons:train", "two-moons:test")
    assert not set(map(tuple, moons.inputs.tolist())) & set(map(tuple, others.inputs.tolist()))


def test_a_split_in_the_name_takes_precedence():
    assert load_builtin("digits:train", split="test").name == "digits:train"
    assert load_builtin("digits", split="test").name == "digits:test"
    with pytest.raises(InputError, match="digits has no split 'validation'"):
        load_builtin("digits", split="validation")


REAL = {
    "fashion-mnist:train": ((60_000, 1, 28, 28), [0.2860]),
    "fashion-mnist:test": ((10_000, 1, 28, 28), None),
    "mnist:train": ((60_000, 1, 28, 28), [0.1307]),
    "mnist:test": ((10_000, 1, 28, 28), [0.1325]),
    "not-mnist": ((10_000, 1, 28, 28), None),
    "cifar10": ((50_000, 3, 32, 32), [0.4914, 0.4822, 0.4465]),
    "cifar10:test": ((10_000, 3, 32, 32), None),
}


@pytest.mark.real_data
@pytest.mark.parametrize("name", REAL)
def test_real_sets_have_their_published_sizes_and_means(real_set, name):
    shape, means = REAL[name]
    loaded = load(name, data_dir=real_set(name))
    assert loaded.inputs.shape == shape
    assert loaded.note == ""
    assert len(set(np.bincount(loaded.labels))) == (10 if name.startswith("mnist") else 1)
    if means:
        assert np.allclose(loaded.inputs.mean(axis=(0, 2, 3)) / 255, means, atol=1e-4)


@pytest.mark.real_data
def test_real_svhn_begins_as_published(real_set):
    loaded = load("svhn:test", data_dir=real_set("svhn:test"))
    assert loaded.labels[:10].tolist() == [5, 2, 1, 0, 6, 1, 9, 1, 1, 8]
    assert bool(loaded.note) == (len(loaded) < 26_032)


def test_two_moons_are_scikit_learns():
    points, labels = make_moons(50, noise=0.1, random_state=3)
    moons = two_moons(50, seed=3)
    assert np.array_equal(moons.inputs, points.astype(np.float32))
    assert np.array_equal(moons.labels, labels)
    assert moons.hashes == two_moons(50, seed=3).hashes != two_moons(50, seed=4).hashes


def test_without_noise_the_moons_are_where_their_names_say():
    moons = two_moons(100, noise=0.0)
    means = [moons.inputs[moons.labels == moons.class_names.index(name), 1].mean() for name in ("upper", "lower")]
    assert means[0] > means[1]


def test_digits_keep_their_shades():
    ours, theirs = digits(), load_digits()
    assert ours.inputs.dtype == np.uint8
    assert np.array_equal(np.rint(ours.inputs[:, 0] * (16 / 255)), theirs.images)
    assert (ours.inputs.min(), ours.inputs.max()) == (0, 255)
    assert np.array_equal(ours.labels, theirs.target)
