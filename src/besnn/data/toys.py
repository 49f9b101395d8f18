"""Small sets that need no download."""

import hashlib

import numpy as np

from besnn.data.dataset import Dataset


def two_moons(n: int = 1000, *, noise: float = 0.1, seed: int = 0) -> Dataset:
    """Two interleaved half circles in the plane, with the noise that DUQ and the paper use.

    Example:
        >>> moons = two_moons(100)
        >>> moons.inputs.shape, moons.class_names
        ((100, 2), ('upper', 'lower'))
    """
    from sklearn.datasets import make_moons  # slow to import, and few uses of this package need it

    points, labels = make_moons(n, noise=noise, random_state=seed)
    inputs, labels = points.astype(np.float32), labels.astype(np.int64)
    hashes = {"two-moons": hashlib.sha256(inputs.tobytes() + labels.tobytes()).hexdigest()}
    return Dataset(inputs, labels, ("upper", "lower"), "two-moons", hashes, feature_names=("x1", "x2"))


def digits() -> Dataset:
    """scikit-learn's 1,797 handwritten digits, grey 8x8.

    Example:
        >>> digits().inputs.shape
        (1797, 1, 8, 8)
    """
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    inputs = np.rint(images.reshape(-1, 1, 8, 8) * (255 / 16)).astype(np.uint8)  # sixteen shades of grey
    labels = labels.astype(np.int64)
    hashes = {"digits": hashlib.sha256(inputs.tobytes() + labels.tobytes()).hexdigest()}
    return Dataset(inputs, labels, tuple("0123456789"), "digits", hashes)
