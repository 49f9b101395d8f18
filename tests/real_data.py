"""Lay the real data sets out in their official file formats, from the compact copies kept beside the repository.

There, MNIST, FashionMNIST and NotMNIST have their official files; CIFAR-10, SVHN and the sample of CIFAR-100 are `.npz` files
with `labels` and, as lossless WebP, `strip_000`, `strip_001`, ...: images 32x32 stacked vertically.
"""

import io
import shutil
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from scipy.io import savemat


def lay_out(source: Path, target: Path) -> None:
    """Write all that `source` holds to `target`, as the catalogue of built-in sets expects it."""
    for name in ("FashionMNIST", "MNIST", "NotMNIST"):
        shutil.copytree(source / name / "raw", target / name / "raw", copy_function=shutil.copyfile)
    write_cifar(source / "CIFAR10", target / "cifar-10-batches-bin")
    images, labels = read_strips(source / "SVHN" / "test_first10000.npz")
    (target / "SVHN").mkdir()
    variables = {"X": images.transpose(1, 2, 3, 0), "y": np.where(labels == 0, 10, labels).astype(np.uint8)[:, None]}
    savemat(target / "SVHN" / "test_32x32.mat", variables)
    images, labels = read_strips(source / "CIFAR100" / "sample5000.npz")
    (target / "CIFAR100").mkdir()
    np.savez_compressed(target / "CIFAR100" / "sample5000.npz", images=images, labels=labels)


def write_cifar(source: Path, target: Path) -> None:
    """Write the binary version of CIFAR-10: for every image a label byte, then its pixels, channels first."""
    target.mkdir()
    parts = [read_strips(source / f"{name}.npz") for name in ("train_1of2", "train_2of2", "test")]
    images, labels = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    records = np.column_stack([labels.astype(np.uint8), images.transpose(0, 3, 1, 2).reshape(len(images), -1)])
    names = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]
    for name, batch in zip(names, np.split(records, len(names)), strict=True):
        batch.tofile(target / f"{name}.bin")


def read_strips(path: Path) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return the images `[n, 32, 32, 3]` and the labels `[n]` of a compact copy."""
    with np.load(path) as archive:
        strips = [archive[name] for name in sorted(archive.files) if name.startswith("strip_")]
        pixels = [np.asarray(Image.open(io.BytesIO(strip.tobytes())).convert("RGB")) for strip in strips]
        return np.concatenate(pixels).reshape(-1, 32, 32, 3), archive["labels"]
