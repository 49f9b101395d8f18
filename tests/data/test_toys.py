import numpy as np
from sklearn.datasets import load_digits, make_moons

from besnn.data import digits, two_moons


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
